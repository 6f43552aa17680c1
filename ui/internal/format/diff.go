package format

import (
	"strings"

	"github.com/effectonce/effectonce/ui/verbs"
)

// DiffLine is a line of a change: "-" was, "+" is new, " " stays.
type DiffLine struct {
	Sign, Text string
}

// mostLines bounds the table of a diff.
const mostLines = 2000

// Diff compares two payloads by lines. Two JSON payloads are indented first.
func Diff(before, after string) []DiffLine {
	if a, ok := Indent(before); ok {
		if b, ok := Indent(after); ok && a != b {
			before, after = a, b
		}
	}
	a, b := strings.Split(verbs.Visible(before), "\n"), strings.Split(verbs.Visible(after), "\n")
	var head, tail []DiffLine
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head, a, b = append(head, DiffLine{" ", a[0]}), a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail, a, b = append(tail, DiffLine{" ", a[len(a)-1]}), a[:len(a)-1], b[:len(b)-1]
	}
	lines := append(around(head, true), middle(a, b)...)
	reversed := make([]DiffLine, len(tail))
	for i, l := range tail {
		reversed[len(tail)-1-i] = l
	}
	return append(lines, around(reversed, false)...)
}

// middle returns a diff by the longest common subsequence, or all lines of both if that would take too long.
func middle(a, b []string) (lines []DiffLine) {
	if len(a) > mostLines || len(b) > mostLines {
		for _, text := range a {
			lines = append(lines, DiffLine{"-", text})
		}
		for _, text := range b {
			lines = append(lines, DiffLine{"+", text})
		}
		return lines
	}
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, DiffLine{" ", a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			lines = append(lines, DiffLine{"-", a[i]})
			i++
		default:
			lines = append(lines, DiffLine{"+", b[j]})
			j++
		}
	}
	return lines
}

// around keeps the lines next to a change, and marks where others are left out.
func around(lines []DiffLine, before bool) []DiffLine {
	const near = 3
	switch {
	case len(lines) <= near:
		return lines
	case before:
		return append([]DiffLine{{"…", ""}}, lines[len(lines)-near:]...)
	}
	return append(lines[:near:near], DiffLine{"…", ""})
}
