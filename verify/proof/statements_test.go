package proof

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// rooms are the packages whose statements the processes send.
var rooms = []string{"outbox", "relay", "inbox"}

var inSource = regexp.MustCompile("[`\"]-- ([a-z]+: [a-z][a-z0-9 -]*?)(?:\n|\\\\n)\\s*\\(?([a-z]+)")

// named matches a statement on its way.
var named = regexp.MustCompile(`^-- ([a-z]+: [a-z][a-z0-9 -]*)(?:\n\s*\(?([a-z]+)|$)`)

// nameOf returns the name of a statement, or that of its kind; "": it has none.
func nameOf(sql string, byKind bool) string {
	m := named.FindStringSubmatch(sql)
	switch {
	case m == nil:
		return ""
	case byKind:
		return statementKind(m[1], m[2])
	}
	return m[1]
}

// statementKind is the kind of a statement: its room and its first word, such as "relay: update".
func statementKind(name, word string) string { return roomOf(name) + " " + word }

// roomOf returns the room in a statement's name, with its colon.
func roomOf(name string) string {
	room, _, _ := strings.Cut(name, " ")
	return room
}

// statements maps the statements of the rooms, without the excused ones, to their kinds. internal/house checks that all
// statements have a name and are in files whose names begin with queries.
func statements(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, room := range rooms {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasPrefix(filepath.Base(path), "queries") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range inSource.FindAllStringSubmatch(string(b), -1) {
				all[m[1]] = statementKind(m[1], m[2])
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
			maps.DeleteFunc(all, func(one, _ string) bool {
				return one == name || several && strings.HasPrefix(one, prefix)
			})
			if n == len(all) {
				t.Errorf("%q is excused (%s), but does not exist", name, why)
			}
		}
	}
	return all
}

// excused maps reasons to the statements that need no faults; a name may end in * as a wildcard.
var excused = map[string][]string{
	"it only reads, for an operator, for metrics, or to check whether an outbox without a relay needs one": {
		"relay: by start", "relay: identity", "relay: waits *", "relay: waits", "relay: drawn", "relay: may change",
		"inbox: by start", "inbox: may change",
		"relay: sample *", "relay: status *", "relay: missing rights", "relay: sequence", "relay: misplaced",
		"relay: leases", "relay: silent", "relay: relay sessions", "relay: aside",
		"relay: find *", "relay: failures", "relay: archive", "relay: topic state", "relay: held of topic",
		"inbox: find *", "inbox: failures",
		"relay: waiting topics", "relay: unacked", "relay: cluster", "relay: vacuum", "relay: blocked keys",
		"relay: held counts",
		"relay: audit log", "relay: acknowledged", "inbox: acknowledged", "relay: list topics",
		"relay: replay plan", "relay: replay head", "relay: replay count", "relay: replay rows", "relay: ended",
		"relay: numbering", "relay: pinned", "relay: held events", "relay: holding", "relay: troubled",
		"relay: versions",
		"relay: unpinned", "relay: first use", "relay: knows topic", "inbox: the group of a consumer",
		"inbox: where a skip would begin",
		"inbox: sample *", "inbox: missing rights", "inbox: diagnose", "inbox: blocked keys", "inbox: audit log",
		"inbox: list the consumers", "inbox: list the progress",
	},
	"one transaction with its audit, by the same function as the commands with faults; it would remove events that " +
		"the checks count, or needs another topic or cluster": {
		"relay: accept cluster", "relay: uncertain", "relay: unsure", "relay: accept", "relay: lock lane",
		"relay: refence", "relay: regroup lane", "relay: regroup",
		"relay: resume regrouped", "relay: lock held", "relay: discard held", "relay: lock events", "relay: forward",
		"relay: make lanes", "relay: make meta", "relay: lock scheduled", "relay: cancel all",
		"inbox: lock a consumer", "inbox: retire a consumer", "inbox: skip to an offset", "inbox: accept a numbering",
		"inbox: resume what waited for a numbering",
		"inbox: lock the consumers", "inbox: move a consumer from ids", "inbox: forget the offsets of a topic",
		"inbox: edit",
	},
	"it needs a dead host, a standby or a role without rights, which verify/failover and the room's own " +
		"tests have": {
		"relay: wal end", "relay: wal barrier", "relay: wal follow", "inbox: have a day dropped",
	},
	"it is repeated until it succeeds, and needs a detach that was interrupted: " +
		"inbox.TestP9_7_InterruptedDetachIsFinished": {
		"inbox: finalize a detach",
	},
	"a note for people, of two parts of a batch whose waits end one after the other; nothing decides by it: " +
		"inbox.TestP9_10_OnePauseIsRecorded": {
		"inbox: note that nothing is tried again",
	},
	"one transaction that the owner of the tables runs once, and again if it failed": {
		"relay: publication", "relay: publish", "relay: publish tables", "relay: publish inserts", "relay: unpublish",
		"relay: wal slot", "relay: wal give up", "relay: wal forget",
	},
}
