// An enumeration and the names of its members from one list of X(member, name).
#pragma once

#define MGE_MEMBER(member, name) member,
#define MGE_NAME(member, name) name,
