"""The pictures of docs/concepts, as SVG. Pure; the same code gives the same bytes."""

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "concepts"

INK, FAINT, PAPER = "#1f2933", "#9aa5b1", "#ffffff"
TRANSACTIONS = {"T1": "#9ecae9", "T2": "#ffbf79", "T3": "#a7d49b"}
PLAIN, STATE = "#e4e7eb", "#d6c9ee"
CUT = "#c62828"

Point = tuple[float, float]


class Picture:
    """Boxes, texts, lines and arrows on white paper."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>\n'
        )
        self._parts: list[str] = []

    def box(self, at: Point, size: Point, text: str = "", *, fill: str = PLAIN, faint: bool = False) -> None:
        """A rectangle with a text in its middle."""
        (x, y), (width, height) = at, size
        shade = ' opacity="0.35"' if faint else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}" '
            f'stroke="{INK}" stroke-width="0.8"{shade}/>'
        )
        if text:
            self.text((x + width / 2, y + height / 2 + 4.5), text, anchor="middle", faint=faint)

    def text(
        self, at: Point, text: str, *, anchor: str = "start", bold: bool = False, faint: bool = False
    ) -> None:
        """A line of text; its base line begins, or has its middle, at the point."""
        weight = ' font-weight="bold"' if bold else ""
        colour = FAINT if faint else INK
        self._parts.append(
            f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" fill="{colour}"{weight}>'
            f"{escape(text)}</text>"
        )

    def caption(self, y: int, *lines: str) -> None:
        """Lines of text below a picture, the first at a height."""
        for number, line in enumerate(lines):
            self.text((24, y + 20 * number), line)

    def line(self, points: Iterable[Point], *, colour: str = INK, width: float = 1.2, dash: str = "") -> None:
        """A line through points."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
        )

    def arrow(self, start: Point, end: Point) -> None:
        """A line to the right or downwards, with a head."""
        (x, y), is_horizontal = end, start[1] == end[1]
        self.line([start, end])
        back = [(x - 6, y - 4), (x - 6, y + 4)] if is_horizontal else [(x - 4, y - 6), (x + 4, y - 6)]
        path = " ".join(f"{x},{y}" for x, y in [end, *back])
        self._parts.append(f'<polygon points="{path}" fill="{INK}"/>')

    def svg(self) -> str:
        """The file's text."""
        return self._head + "\n".join(self._parts) + "\n</svg>\n"


def pictures() -> dict[str, str]:
    """Returns the text of each picture by its name in docs/images/concepts/."""
    return {
        "torn.svg": torn(),
        "cut.svg": cut(),
        "stages.svg": stages(),
        "commit-records.svg": commit_records(),
        "barriers.svg": barriers(),
    }


PARTITIONS = {
    "orders / 0": [("T1", "order 1"), ("T2", "order 1")],
    "orders / 1": [("T3", "order 2")],
    "order_lines / 0": [("T1", "line 11"), ("T2", "line 13")],
    "order_lines / 1": [("T1", "line 12"), ("T3", "line 21")],
}
"""Which row of which transaction lies where: order 1 gets two lines, then a third; order 2 has one."""
_WIDTH, _HEIGHT, _ROW = 84, 26, 40


def _topics(picture: Picture, left: float, top: float, *, beyond: str = "") -> None:
    """Draws the partitions; rows of one transaction may be shown faint."""
    for row, (name, records) in enumerate(PARTITIONS.items()):
        y = top + row * _ROW
        picture.text((left - 12, y + 18), name, anchor="end")
        for place, (transaction, text) in enumerate(records):
            x = left + place * (_WIDTH + 8)
            faint = transaction == beyond
            picture.box((x, y), (_WIDTH, _HEIGHT), text, fill=TRANSACTIONS[transaction], faint=faint)


def torn() -> str:
    """How three transactions lie in topics, and what a consumer has read of them."""
    picture = Picture(760, 330, "Three transactions, torn apart over the partitions of two topics")
    picture.text((24, 30), "the database commits", bold=True)
    rows = {
        "T1": ["order 1", "line 11", "line 12"],
        "T2": ["order 1", "line 13"],
        "T3": ["order 2", "line 21"],
    }
    for number, (name, changes) in enumerate(rows.items()):
        y = 48 + number * 74
        picture.text((24, y + 18), name, bold=True)
        for place, text in enumerate(changes):
            at = (54 + (place % 2) * 78, y + (place // 2) * 28)
            picture.box(at, (74, 24), text, fill=TRANSACTIONS[name])
    picture.arrow((226, 130), (282, 130))
    picture.text((254, 118), "Debezium", anchor="middle")
    picture.text((420, 30), "topics and their partitions", bold=True)
    _topics(picture, 420, 52)
    read = [(606, 44), (606, 84), (514, 84), (514, 124), (508, 124), (508, 164), (414, 164), (414, 206)]
    picture.line(read, colour=CUT, width=2, dash="5 3")
    picture.text((620, 70), "read so far", bold=True)
    picture.caption(
        290,
        "A consumer that has read what lies left of the dashed line shows order 1 as T2 left it, but",
        "with one of three lines: 12 (T1) and 13 (T2) are still to come. No commit ever made that state.",
    )
    return picture.svg()


def cut() -> str:
    """The end offsets of a cut."""
    picture = Picture(760, 300, "A cut: one end offset per partition, all at the same commit")
    picture.text((24, 30), "the transaction topic", bold=True)
    for place, (name, count) in enumerate({"T1": 3, "T2": 2, "T3": 2}.items()):
        at, text = (24, 52 + place * 40), f"END {name}: {count} rows"
        picture.box(at, (136, 26), text, fill=TRANSACTIONS[name], faint=name == "T3")
    picture.text((320, 30), "topics and their partitions", bold=True)
    _topics(picture, 320, 52, beyond="T3")
    line = [(500, 44), (500, 84), (314, 84), (314, 124), (500, 124), (500, 164), (408, 164), (408, 206)]
    picture.line(line, colour=CUT, width=2.5)
    for row, offset in enumerate((2, 0, 2, 1)):
        picture.text((560, 70 + row * _ROW), f"end offset {offset}")
    picture.text((560, 30), "cut at T2", bold=True)
    picture.caption(
        240,
        "The cut at T2: whatever T1 and T2 changed lies left of the line, and nothing else does.",
        "It can be published as soon as all five rows that the two ENDs count have been read,",
        "however much of T3 is already there.",
    )
    return picture.svg()


def stages() -> str:
    """From changed rows to changed documents."""
    picture = Picture(760, 330, "A pipeline of two stages")
    for row, name in enumerate(("customers", "orders", "order_lines")):
        picture.box((24, 60 + row * 52), (104, 34), name)
    picture.text((24, 34), "changed rows", bold=True)
    for column, (left, name, key) in enumerate(
        ((210, "stage 1: join", "by order id"), (440, "stage 2: add up", "by customer id"))
    ):
        picture.text((left, 34), name, bold=True)
        picture.text((left, 52), key)
        for bucket in range(4):
            y = 64 + bucket * 36
            picture.box((left, y), (120, 28), f"bucket {bucket}", fill=STATE)
            picture.arrow((left + 120, y + 14), (left + (190 if column else 222), y + 14))
    for row in range(3):
        picture.arrow((128, 77 + row * 52), (202, 77 + row * 52))
    picture.box((636, 64), (104, 136), "documents", fill="#a7d49b")
    picture.text((636, 34), "changed", bold=True)
    picture.text((636, 52), "documents", bold=True)
    picture.arrow((270, 208), (270, 236))
    picture.arrow((500, 208), (500, 236))
    picture.box(
        (150, 238), (470, 30), "checkpoint: a log of changes per bucket, and a manifest per batch", fill=PLAIN
    )
    picture.box(
        (150, 280), (470, 30), "local disk: an index per bucket, a cache that can be lost", fill=PAPER
    )
    return picture.svg()


def commit_records() -> str:
    """A batch in the output topics."""
    picture = Picture(760, 310, "One batch in the output: documents, a commit record and a progress record")
    picture.text((24, 32), "one Kafka transaction", bold=True)
    picture.line([(8, 44), (570, 44), (570, 244), (8, 244), (8, 44)], colour=CUT, width=1.6, dash="6 4")
    names = ("order_details / 0", "order_details / 1", "order_details / 2")
    documents = (("order 1", "order 7"), ("order 2",), ("order 3", "order 9"))
    for row, (name, keys) in enumerate(zip(names, documents, strict=True)):
        picture.text((150, 74 + row * 38), name, anchor="end")
        for place, key in enumerate(keys):
            picture.box((164 + place * 92, 56 + row * 38), (84, 26), key, fill=TRANSACTIONS["T1"])
    picture.text((158, 188), "order_details.commits", anchor="end")
    picture.box(
        (164, 170), (396, 26), "commit record: transactions, and offsets in each partition", fill=STATE
    )
    picture.text((150, 228), "progress", anchor="end")
    picture.box((164, 210), (396, 26), "progress record: batch 17, and the manifest of its state", fill=STATE)
    picture.arrow((570, 120), (610, 120))
    picture.box((612, 84), (130, 72), "", fill=PLAIN)
    for y, text in ((108, "a reader of"), (126, "committed"), (144, "records")):
        picture.text((677, y), text, anchor="middle")
    picture.caption(
        272,
        "Readers see all of it or nothing. After a crash the progress record says which batch is the newest,",
        "and so from which state the pipeline continues: output and state are never of different batches.",
    )
    return picture.svg()


def barriers() -> str:
    """Two pipelines, their barriers and a consistent snapshot."""
    picture = Picture(760, 300, "Barriers, a consistent snapshot and a lease")
    picture.text((24, 34), "commits of the database, second by second", bold=True)
    for second in range(5):
        x = 190 + second * 120
        picture.line([(x, 50), (x, 226)], colour=FAINT, dash="3 3")
        picture.text((x, 244), f"barrier {second + 1}", anchor="middle")
    for row, (name, ends) in enumerate(
        {"pipeline orders": (60, 60, 50, 70, 120, 60, 60, 60), "pipeline stock": (120, 120)}.items()
    ):
        y, x = 70 + row * 70, 70
        picture.text((24, y - 6), name)
        for width in ends:
            picture.box((x, y), (width - 3, 28), "", fill=TRANSACTIONS["T1" if row == 0 else "T2"])
            x += width
    picture.line([(310, 46), (310, 230)], colour=CUT, width=2.5)
    picture.text((318, 62), "newest barrier that both show: a consistent snapshot")
    picture.caption(
        270,
        "Every pipeline ends a batch at every barrier, so all can be read at one commit. Nobody waits:",
        "a slow pipeline makes old only the snapshots that ask for its views. A lease keeps one readable.",
    )
    return picture.svg()
