package proof

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// rooms are whose statements the processes send.
var rooms = []string{"outbox", "relay", "inbox"}

var inSource = regexp.MustCompile("[`\"]-- ([a-z]+: [a-z][a-z0-9 -]*?)(\n|\\\\n)")

// statements lists the statements of the rooms without the excused ones. The house's tests see to it that all of them
// stand in files that are called so, with their names.
func statements(t *testing.T) (all []string) {
	t.Helper()
	for _, room := range rooms {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasPrefix(filepath.Base(path), "queries") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range inSource.FindAllStringSubmatch(string(b), -1) {
				all = append(all, m[1])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 100 {
		t.Fatalf("only %d statements found", len(all))
	}
	for why, names := range excused {
		for _, name := range names {
			n := len(all)
			prefix, several := strings.CutSuffix(name, "*")
			all = slices.DeleteFunc(all, func(one string) bool {
				return one == name || several &&
					strings.HasPrefix(one, prefix)
			})
			if n == len(all) {
				t.Errorf("%q is excused (%s), and there is no such statement", name, why)
			}
		}
	}
	return all
}

// excused says why nobody need die at some statements; a name that ends in * stands for all that begin so.
var excused = map[string][]string{
	"it only reads, for a person, a page of metrics, or to see whether an outbox without a relay needs one": {
		"relay: by start", "relay: waits *", "relay: waits", "inbox: by start",
		"relay: sample *", "relay: status *", "relay: missing rights", "relay: sequence", "relay: misplaced",
		"relay: leases", "relay: silent", "relay: aside",
		"relay: waiting topics", "relay: cluster", "relay: vacuum", "relay: blocked keys", "relay: held counts",
		"relay: audit log", "relay: list topics",
		"relay: replay plan", "relay: replay head", "relay: replay count", "relay: replay rows", "relay: ended",
		"relay: numbering", "relay: pinned", "relay: held events",
		"inbox: sample *", "inbox: missing rights", "inbox: diagnose", "inbox: blocked keys", "inbox: audit log",
		"inbox: list the consumers", "inbox: list the progress",
	},
	"one transaction with its audit, by the function of the verbs that are killed at; it would take away what is " +
		"counted here, or needs another topic or cluster": {
		"relay: accept cluster", "relay: uncertain", "relay: unsure", "relay: accept", "relay: lock lane",
		"relay: refence", "relay: regroup lane", "relay: regroup",
		"relay: resume regrouped", "relay: lock held", "relay: discard held", "relay: lock events", "relay: forward",
		"inbox: lock a consumer", "inbox: retire a consumer", "inbox: skip to an offset", "inbox: accept a numbering",
		"inbox: resume what waited for a numbering",
		"inbox: lock the consumers", "inbox: move a consumer from ids", "inbox: forget the offsets of a topic",
		"inbox: edit",
	},
	"it needs a dead host, a standby or a role without rights, which internal/verify/failover and the room's own " +
		"tests have": {
		"relay: wal end", "relay: wal barrier", "relay: wal follow", "inbox: have a day dropped",
	},
	"it is sent again until it works, and needs a detach that was interrupted: " +
		"inbox.TestP9_7_InterruptedDetachIsFinished": {
		"inbox: finalize a detach",
	},
	"one transaction that the owner of the tables runs once, and again when it failed": {
		"relay: publication", "relay: publish", "relay: publish tables", "relay: publish inserts", "relay: unpublish",
		"relay: wal slot", "relay: wal give up", "relay: wal forget",
	},
}
