package main

import (
	"bytes"
	"fmt"
	"go/doc/comment"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/effectonce/effectonce/ui/verbs"
)

// terminal is stdout, and how it shows text.
type terminal struct {
	io.Writer
	width  int // in columns; 0: stdout is no terminal, and nothing is cut or wrapped
	colour bool
}

func terminalOf(stdout io.Writer, env func(string) string) terminal {
	file, ok := stdout.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return terminal{Writer: stdout}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return terminal{stdout, width, env("NO_COLOR") == "" && env("TERM") != "" && env("TERM") != "dumb"}
}

// Attributes of text: the parameters of the escape sequence.
const bold, red, green, yellow = "1", "31", "32", "33"

func (t terminal) paint(attribute, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + attribute + "m" + text + "\x1b[0m"
}

var painted = regexp.MustCompile("\x1b\\[[0-9]+m|[^\x1b]+|\x1b")

// Write makes the characters of events and errors visible that a terminal would obey.
func (t terminal) Write(p []byte) (int, error) {
	text := painted.ReplaceAllStringFunc(string(p), func(s string) string {
		if t.colour && len(s) > 2 && s[0] == '\x1b' {
			return s
		}
		return verbs.Visible(s)
	})
	_, err := io.WriteString(t.Writer, text)
	return len(p), err
}

// wrap breaks a text that begins in a column, and indents its further lines to there.
func (t terminal) wrap(column int, text string) string {
	if t.width-column < 20 {
		return text
	}
	printer := comment.Printer{TextPrefix: strings.Repeat(" ", column), TextWidth: t.width - column}
	return strings.TrimSpace(string(printer.Text(&comment.Doc{Content: paragraph(text)})))
}

// table aligns the cells of lines, which are separated by tabs. The first line is the head. Lines without a tab end a
// table. On a terminal no line is longer than a row of it: the longest cells are cut. Where that would cut heads, each
// cell has a line of its own, as psql's expanded display has it.
type table struct {
	terminal
	text bytes.Buffer
}

func newTable(w io.Writer) *table {
	t, ok := w.(terminal)
	if !ok {
		t = terminal{Writer: w}
	}
	return &table{terminal: t}
}

func (t *table) Write(b []byte) (int, error) { return t.text.Write(b) }

// Flush writes the table.
func (t *table) Flush() error {
	var out strings.Builder
	var rows [][]string
	for line := range strings.Lines(t.text.String()) {
		if strings.Contains(line, "\t") {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
			continue
		}
		out.WriteString(t.lay(rows) + line)
		rows = nil
	}
	_, err := io.WriteString(t.Writer, out.String()+t.lay(rows))
	return err
}

// lay aligns the cells of one table.
func (t *table) lay(rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	padding := 3
	if t.width > 0 {
		padding = 2
		if !cut(rows, t.width, padding) && len(rows) > 1 {
			return t.expand(rows)
		}
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, padding, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	head, rest, _ := strings.Cut(out.String(), "\n")
	return t.paint(bold, head) + "\n" + rest
}

// expand writes a line for each cell, after its head.
func (t *table) expand(rows [][]string) string {
	column := 2
	for _, head := range rows[0] {
		column = max(column, utf8.RuneCountInString(head)+2)
	}
	var out strings.Builder
	for n, row := range rows[1:] {
		if n > 0 {
			out.WriteByte('\n')
		}
		for i, cell := range row[:min(len(row), len(rows[0]))] {
			head := fmt.Sprintf("%-*s", column, rows[0][i])
			out.WriteString(t.paint(bold, head) + shorten(cell, t.width-column) + "\n")
		}
	}
	return out.String()
}

func shorten(cell string, most int) string {
	if r := []rune(cell); len(r) > max(most, 1) {
		return string(r[:max(most, 1)-1]) + "…"
	}
	return cell
}

// cut shortens the longest cells until the rows fit. It reports false, and changes nothing, if heads had to be cut, or
// cells to less than ten columns.
func cut(rows [][]string, width, padding int) bool {
	least := 10
	for _, head := range rows[0] {
		least = max(least, utf8.RuneCountInString(head))
	}
	var columns []int // widths
	for _, row := range rows {
		for i, cell := range row {
			if i == len(columns) {
				columns = append(columns, 0)
			}
			columns[i] = max(columns[i], utf8.RuneCountInString(cell))
		}
	}
	most := slices.Max(columns) // columns of a cell
	for ; ; most-- {
		sum := padding * (len(columns) - 1)
		for _, n := range columns {
			sum += min(n, most)
		}
		if sum <= width {
			break
		}
		if most <= least {
			return false
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = shorten(cell, most)
		}
	}
	return true
}
