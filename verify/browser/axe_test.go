package browser

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"testing"
)

// axe is axe-core as its authors publish it: npm pack axe-core@4.14.1, package/axe.min.js. Its licences stand beside.
//
//go:embed testdata/axe.min.js
var axe string

const axeSHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"

func TestAxeIsAsPublished(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(axe))
	if got := hex.EncodeToString(sum[:]); got != axeSHA256 {
		t.Errorf("testdata/axe.min.js has the SHA-256 %s", got)
	}
}

// The rules of an examination, as options of axe. What is not about colours is the same in each theme.
const (
	allRules  = `runOnly: undefined`
	ofColours = `runOnly: ["color-contrast", "link-in-text-block"]`
)

// examination runs rules of axe's, of all of them all but those that are experiments.
const examination = `axe.run(document, {preload: false, resultTypes: ["violations"], %s}).then(found =>
	found.violations.map(v => v.id + " (" + v.help + "): " + v.nodes.slice(0, 3).map(n =>
		n.html.slice(0, 200) + " " + n.failureSummary.replace(/\s+/g, " ")).join("; ")))`

// axe returns what keeps people out of the page as it is now.
func (b *tab) axe(rules string) (violations []string) {
	b.t.Helper()
	var there bool
	if b.js("'axe' in window", &there); !there {
		b.js(axe, nil)
	}
	b.js(fmt.Sprintf(examination, rules), &violations)
	return violations
}
