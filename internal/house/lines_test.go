package house

import (
	"go/ast"
	"strings"
	"testing"
)

// widest is how many columns a line of a page or of a comment may have. A tab is four.
const widest = 120

// TestLines: code, comments and pages are not wider. What cannot be broken may be: struct tags and raw strings that are
// no named statement, code in comments and pages, tables, directives, generated parts of pages, and single words.
func TestLines(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		lines := strings.Split(readFile(t, s.path), "\n")
		free := unbreakable(s)
		for i, line := range lines {
			if columns(line) > widest && !free[i+1] {
				t.Errorf("%s:%d: code of %d columns; %d is the most", s.path, i+1, columns(line), widest)
			}
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				from := s.set.Position(c.Pos()).Line
				for i, text := range strings.Split(c.Text, "\n") {
					if line := lines[from+i-1]; columns(line) > widest && canBeBroken(text) {
						t.Errorf("%s:%d: a comment of %d columns; %d is the most", s.path, from+i, columns(line),
							widest)
					}
				}
			}
		}
	}
	for _, file := range files(t, ".md") {
		for n, line := range proseOf(readFile(t, file)) {
			if file != "CHANGELOG.md" && columns(line) > widest {
				t.Errorf("%s:%d: a line of %d columns; %d is the most", file, n, columns(line), widest)
			}
		}
	}
}

// unbreakable returns the lines of a file that code cannot be broken on: those with a comment, which is looked at by
// itself, a struct tag, or a raw string that is no named statement.
func unbreakable(s source) map[int]bool {
	free := map[int]bool{}
	mark := func(n ast.Node) {
		for l := s.set.Position(n.Pos()).Line; l <= s.set.Position(n.End()).Line; l++ {
			free[l] = true
		}
	}
	for _, group := range s.file.Comments {
		mark(group)
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if ok && strings.HasPrefix(lit.Value, "`") && !strings.HasPrefix(lit.Value, "`-- ") {
			mark(lit)
		}
		return true
	})
	return free
}

// canBeBroken: a line of a comment is text. A directive has no space behind the slashes, and code a tab.
func canBeBroken(comment string) bool {
	text, ok := strings.CutPrefix(comment, "// ")
	return ok && strings.Contains(strings.TrimSpace(text), " ")
}

// proseOf returns the lines of a page that can be broken, by number: no code, no table, no link of one word, and
// nothing that a program writes between two marks.
func proseOf(page string) map[int]string {
	prose := map[int]string{}
	code, generated := false, false
	for i, line := range strings.Split(page, "\n") {
		text := strings.TrimSpace(line)
		mark, isMark := strings.CutPrefix(text, "<!-- ")
		switch {
		case strings.HasPrefix(text, "```"):
			code = !code
		case isMark && strings.HasPrefix(mark, "end of "):
			generated = false
		case isMark && strings.Contains(page, "\n<!-- end of "+mark):
			generated = true
		case code, generated, strings.HasPrefix(text, "|"), !strings.Contains(strings.TrimLeft(text, "-* "), " "):
		default:
			prose[i+1] = line
		}
	}
	return prose
}

func columns(line string) int { return len([]rune(line)) + 3*strings.Count(line, "\t") }
