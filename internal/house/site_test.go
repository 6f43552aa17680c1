package house

import (
	"crypto/sha1"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readers are the sections of the site, which are those of docs/llms.txt. All but the last are of users.
var readers = []string{"Start", "Produce", "Consume", "At the edge", "Operate", "Platforms", "Contribute"}

// TestPagesHaveASection: docs/llms.txt, which the site's navigation follows, names each page of docs once, itself or by
// its folder, and nothing that does not exist. docs/README.md has the same list. Users have few pages to look through:
// how it is built and proven is for contributors.
func TestPagesHaveASection(t *testing.T) {
	t.Parallel()
	index, list := readFile(t, "docs/llms.txt"), readFile(t, "docs/README.md")
	var sections, named, ofUsers []string
	for line := range strings.Lines(index) {
		if section, is := strings.CutPrefix(line, "## "); is {
			sections = append(sections, strings.TrimSpace(section))
		}
		m := regexp.MustCompile(`^- \[[^]]+\]\(([^)]+)\): \S`).FindStringSubmatch(line)
		switch {
		case m != nil && slices.Contains(named, m[1]):
			t.Errorf("docs/llms.txt names %s twice", m[1])
		case m != nil:
			named = append(named, m[1])
			if last := len(sections) - 1; sections[last] != readers[len(readers)-1] {
				ofUsers = append(ofUsers, m[1])
			}
			if m[1] != "README.md" && !strings.Contains(list, line) {
				t.Errorf("docs/README.md has not the line\n%s", line)
			}
		case strings.HasPrefix(line, "-"):
			t.Errorf("docs/llms.txt: want - [title](page or folder/): what it says; got %q", line)
		}
	}
	if !slices.Equal(sections, readers) {
		t.Errorf("docs/llms.txt has the sections %q, want %q", sections, readers)
	}
	if n := len(ofUsers); n < 30 || n > 35 {
		t.Errorf("users have %d pages and folders in docs/llms.txt: %q", n, ofUsers)
	}
	for _, name := range []string{"benchmarks.md", "decisions/", "protocol.md", "reliability.md", "rules.md"} {
		if slices.Contains(ofUsers, name) {
			t.Errorf("docs/llms.txt shows %s to users: it belongs to contributors", name)
		}
	}
	for _, name := range named {
		info, err := os.Stat(path.Join(root, "docs", name))
		if err != nil || info.IsDir() != strings.HasSuffix(name, "/") {
			t.Errorf("docs/llms.txt names %s, which is no page or folder/: %v", name, err)
		}
	}
	for _, file := range files(t, ".md") {
		name, is := strings.CutPrefix(file, "docs/")
		if is && !slices.Contains(named, name) && !slices.Contains(named, path.Dir(name)+"/") {
			t.Errorf("docs/llms.txt does not name %s: add a line to the section of its readers", name)
		}
	}
}

// TestDiagrams: the diagrams were drawn from their text as it is, and pages show them.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	var pages strings.Builder
	for _, page := range files(t, ".md") {
		pages.WriteString(readFile(t, page))
	}
	texts := files(t, ".d2")
	for _, file := range texts {
		text, drawn := readFile(t, file), strings.TrimSuffix(file, ".d2")+".svg"
		hash := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
		if !strings.HasSuffix(readFile(t, drawn), fmt.Sprintf("%s: %x -->\n", file, hash)) {
			t.Errorf("%s is not drawn from %s: make diagrams", drawn, file)
		}
		if !strings.Contains(pages.String(), "(diagrams/"+path.Base(drawn)+")") {
			t.Errorf("no page shows %s", drawn)
		}
	}
	if len(texts) < 3 {
		t.Errorf("found the diagrams %v", texts)
	}
}

// TestAgents: what AGENTS.md and CONTRIBUTING.md name exists: targets of make, files, folders, tests and patches.
func TestAgents(t *testing.T) {
	t.Parallel()
	makefile := readFile(t, "Makefile")
	var tests strings.Builder
	for _, file := range files(t, "_test.go") {
		tests.WriteString(readFile(t, file))
	}
	for _, page := range []string{"AGENTS.md", "CONTRIBUTING.md"} {
		text := readFile(t, page)
		for _, m := range regexp.MustCompile("(?m)(?:`|^)make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+": ") {
				t.Errorf("%s names make %s, which the Makefile does not have", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`(?:-run |RUN=)(Test\w+)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests.String(), "\nfunc "+m[1]) {
				t.Errorf("%s names %s, and no test begins with that", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`BUG=([a-z-]+-[a-z-]+)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(path.Join(root, "verify/mutations", m[1]+".patch")); err != nil {
				t.Errorf("%s names a bug: %v", page, err)
			}
		}
		paths := regexp.MustCompile("`((?:\\.ci|docs|internal|relay|inbox|cmd|ui|idempotency)/[\\w./-]+)`")
		for _, m := range paths.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(path.Join(root, m[1])); err != nil {
				t.Errorf("%s names a path: %v", page, err)
			}
		}
	}
}
