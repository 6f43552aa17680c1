package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLinks compares the modules of others that each public package links with links.txt: what a service pays for an
// import is decided there, and does not grow by itself. So is what the demo, which newcomers wait for, compiles.
func TestLinks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("links.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if pkg, modules, found := strings.Cut(strings.TrimSpace(line), ":"); found && !strings.HasPrefix(line, "#") {
			listed[pkg] = strings.TrimSpace(modules)
		}
	}
	linked := links(t)
	for pkg, modules := range linked {
		want, there := listed[pkg]
		if got := strings.Join(modules, " "); !there || got != want {
			t.Errorf("%s links other modules than links.txt says; if that is meant, its line is now\n%s: %s", pkg, pkg,
				got)
		}
	}
	for pkg := range listed {
		if _, there := linked[pkg]; !there {
			t.Errorf("links.txt has %s, which is no public package", pkg)
		}
	}
}

// TestRequirements: whoever imports a package of the root module has its requirements in the graph of modules. They
// are few, and none is a module of this repository: those require the root.
func TestRequirements(t *testing.T) {
	t.Parallel()
	const most = 15
	cmd := exec.Command("go", "mod", "edit", "-json", "go.mod")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	direct := 0
	for _, r := range mod.Require {
		if strings.HasPrefix(r.Path, module) {
			t.Errorf("the root module requires %s, which requires the root module", r.Path)
		}
		if !r.Indirect {
			direct++
		}
	}
	if direct == 0 || direct > most {
		t.Errorf("the root module has %d direct requirements; %d is the most", direct, most)
	}
}

// links returns the modules of others, sorted, whose packages each public package imports, directly or not.
func links(t *testing.T) map[string][]string {
	t.Helper()
	type listed struct {
		ImportPath, Name string
		GoFiles, Deps    []string
		Module           *struct{ Path string }
	}
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Name,GoFiles,Deps,Module", "work")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all[p.ImportPath] = p
	}
	found := map[string][]string{}
	for path, p := range all {
		if p.Name == "main" || len(p.GoFiles) == 0 || !strings.HasPrefix(path, module+"/") || !importable(ours(path)) {
			if path != module+"/examples/demo" {
				continue
			}
		}
		modules := []string{}
		for _, d := range p.Deps {
			if m := all[d].Module; m != nil && !strings.HasPrefix(m.Path, module) && !slices.Contains(modules, m.Path) {
				modules = append(modules, m.Path)
			}
		}
		slices.Sort(modules)
		found[ours(path)] = modules
	}
	return found
}

// importable tells whether a package is one that users import.
func importable(pkg string) bool {
	return !strings.Contains("/"+pkg+"/", "/internal/") && !under(pkg, []string{"cmd", "examples", "verify"})
}
