"""What traced modules and graphs have for notebooks and for Graphviz."""

from __future__ import annotations

from typing import Any

from megengine.core.errors import GraphError
from megengine.core.notebook import html_picture
from megengine.core.text import counted


class Drawable:
    """Pictures of a graph: `_repr_svg_` and `_repr_html_` for notebooks, `to_graphviz` for Graphviz."""

    def _graphs_to_draw(self) -> list[Any]:
        """The graphs that pictures show, values of InternalGraph."""
        raise NotImplementedError

    def to_graphviz(self, *, depth: int | None = None) -> Any:
        """The graph as a `graphviz.Digraph`: see `megengine.traced_module.pictures.dot.to_graphviz`.

        Raises GraphError when there are several graphs; each of `graphs` can be drawn.
        """
        from megengine.traced_module.pictures.dot import to_graphviz

        graphs = self._graphs_to_draw()
        if len(graphs) != 1:
            raise GraphError(
                f"to_graphviz: there are {counted(len(graphs), 'graph')}; expected one; draw each one of .graphs"
            )
        return to_graphviz(graphs[0], depth=depth)

    def _repr_svg_(self) -> str | None:
        """What notebooks show of it where they take pictures only."""
        from megengine.traced_module.pictures.drawing import in_notebook

        graphs = self._graphs_to_draw()
        return in_notebook(graphs[0]) if graphs else None

    def _repr_html_(self) -> str | None:
        """What notebooks show."""
        from megengine.traced_module.pictures.drawing import in_notebook

        return "".join(html_picture(in_notebook(graph), graph.name) for graph in self._graphs_to_draw()) or None
