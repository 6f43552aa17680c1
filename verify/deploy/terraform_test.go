package deploy

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

const terraformFile = "../../deploy/terraform/main.tf"

// terraform reads the sample: its text and its syntax.
func terraform(t *testing.T) ([]byte, *hclsyntax.Body) {
	t.Helper()
	text, err := os.ReadFile(terraformFile)
	if err != nil {
		t.Fatal(err)
	}
	file, diagnostics := hclsyntax.ParseConfig(text, terraformFile, hcl.InitialPos)
	if diagnostics.HasErrors() {
		t.Fatal(diagnostics)
	}
	return text, file.Body.(*hclsyntax.Body)
}

// TestTerraform: the sample is HCL in terraform's format; what is declared is used, and what is used is declared.
func TestTerraform(t *testing.T) {
	t.Parallel()
	text, body := terraform(t)
	if !bytes.Equal(hclwrite.Format(text), text) {
		t.Errorf("%s is not in terraform's format", terraformFile)
	}
	declared := map[string]bool{} // by address: used
	for _, b := range body.Blocks {
		switch b.Type {
		case "variable":
			declared["var."+b.Labels[0]] = false
		case "locals":
			for name := range b.Body.Attributes {
				declared["local."+name] = false
			}
		case "data":
			declared["data."+strings.Join(b.Labels, ".")] = false
		case "resource":
			declared[strings.Join(b.Labels, ".")] = true // it may be there for itself
		}
	}
	for _, name := range names(body) {
		if _, ok := declared[name]; !ok {
			t.Errorf("%s is not declared", name)
		}
		declared[name] = true
	}
	for name, used := range declared {
		if !used {
			t.Errorf("nothing uses %s", name)
		}
	}
	if len(declared) < 20 {
		t.Errorf("found %d declarations", len(declared))
	}
}

// names are the addresses that the expressions of a block use.
func names(body *hclsyntax.Body) (all []string) {
	for _, a := range body.Attributes {
		for _, v := range a.Expr.Variables() {
			parts := []string{v.RootName()}
			for _, step := range v[1:] {
				if s, ok := step.(hcl.TraverseAttr); ok {
					parts = append(parts, s.Name)
				}
			}
			switch {
			case len(parts) == 1 || parts[0] == "each": // a type, or the key or value of for_each
			case parts[0] == "data":
				all = append(all, strings.Join(parts[:3], "."))
			default:
				all = append(all, strings.Join(parts[:2], "."))
			}
		}
	}
	for _, b := range body.Blocks {
		all = append(all, names(b.Body)...)
	}
	return all
}

// TestTerraformOfRelay: the output has settings of relay, as the Helm chart knows them, and the policy the rights that
// docs/platforms names.
func TestTerraformOfRelay(t *testing.T) {
	t.Parallel()
	text, body := terraform(t)
	var schema struct {
		Properties struct {
			Settings, Secrets struct{ PropertyNames struct{ Enum []string } }
		}
	}
	known, err := os.ReadFile("../../deploy/helm/effectonce/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(known, &schema); err != nil {
		t.Fatal(err)
	}
	settings := slices.Concat(schema.Properties.Settings.PropertyNames.Enum,
		schema.Properties.Secrets.PropertyNames.Enum)
	i := slices.IndexFunc(body.Blocks, func(b *hclsyntax.Block) bool { return b.Type == "output" })
	found := 0
	for _, item := range body.Blocks[i].Body.Attributes["value"].Expr.(*hclsyntax.ObjectConsExpr).Items {
		key, _ := item.KeyExpr.Value(nil)
		name, isRelays := strings.CutPrefix(key.AsString(), "RELAY_")
		if name = strings.ReplaceAll(strings.ToLower(name), "_", "-"); isRelays && !slices.Contains(settings, name) {
			t.Errorf("relay has no setting %s", name)
		}
		found++
	}
	if found < 5 {
		t.Errorf("found %d settings", found)
	}
	page, err := os.ReadFile("../../docs/platforms/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| relay \|.*`).Find(page)
	want := rights(regexp.MustCompile("`(?:kafka-cluster:)?(\\w+)`"), row)
	if got := rights(regexp.MustCompile(`"kafka-cluster:(\w+)"`), text); !slices.Equal(got, want) || len(want) < 4 {
		t.Errorf("the policy has %v, docs/platforms/kafka.md %v", got, want)
	}
}

func rights(action *regexp.Regexp, text []byte) []string {
	all := map[string]bool{}
	for _, m := range action.FindAllSubmatch(text, -1) {
		all[string(m[1])] = true
	}
	return slices.Sorted(maps.Keys(all))
}
