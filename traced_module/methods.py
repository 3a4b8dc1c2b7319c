"""The functions that stand on the graph core and that its methods call, handed in."""

from megengine.module.settings import add_listener
from megengine.traced_module.editing import ends, expressions, parts, rewiring
from megengine.traced_module.editing.assigning import assigned, check_deletable, set_in_graphs
from megengine.traced_module.editing.checking import check_same
from megengine.traced_module.editing.dead_parts import drop_dead_parts
from megengine.traced_module.editing.edit_log import log_of
from megengine.traced_module.editing.edit_records import Recorder
from megengine.traced_module.editing.inferring import retry
from megengine.traced_module.editing.inserting import Insertion
from megengine.traced_module.formats.pickling import pieces, rebuilt, reduced
from megengine.traced_module.interpret import interpret, run_alone
from megengine.traced_module.ir.copying import cloned
from megengine.traced_module.ir.lint import check
from megengine.traced_module.ir.methods import Methods, hand_in
from megengine.traced_module.pictures.dot import to_graphviz
from megengine.traced_module.pictures.drawing import notebook_html, notebook_svg

add_listener(set_in_graphs)
hand_in(
    Methods(
        run=run_alone,
        set_arg=rewiring.set_arg,
        set_arguments=rewiring.set_arguments,
        set_attribute=parts.set_attribute,
        set_inputs=rewiring.set_inputs,
        add_input_node=ends.add_input_node,
        add_output_node=ends.add_output_node,
        apply=expressions.apply,
        compile=drop_dead_parts,
        constant=expressions.constant,
        erase=expressions.erase,
        insertion=Insertion,
        rename=expressions.rename,
        replace_module=parts.replace_module,
        replace_node=rewiring.replace_node,
        reset_inputs=ends.reset_inputs,
        reset_outputs=ends.reset_outputs,
        value_of=ends.value_of,
        assigned=assigned,
        check_deletable=check_deletable,
        pieces=pieces,
        rebuilt=rebuilt,
        check_same=check_same,
        cloned=cloned,
        interpret=interpret,
        lint=check,
        log_of=log_of,
        notebook_html=notebook_html,
        notebook_svg=notebook_svg,
        recorder=Recorder,
        reduced=reduced,
        retry=retry,
        to_graphviz=to_graphviz,
    )
)
