package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox/operator"
)

// TestCauses: what is known of partitions that wait is said once for all of them, and advises nothing that cannot help.
func TestCauses(t *testing.T) {
	t.Parallel()
	// at is a partition with 100 records, and how many of them are older than 40s.
	type at struct {
		operator.PartitionState
		older int64
	}
	batch := func(unmoved, running time.Duration) []at {
		return []at{{operator.PartitionState{
			Unmoved: unmoved, Batch: &operator.Batch{For: running, By: "w on 10.0.0.7"},
		}, 9}}
	}
	killed := func(times int) []at { return []at{{operator.PartitionState{Attempts: times}, 0}} }
	still := func(unmoved time.Duration, older int64) at {
		return at{operator.PartitionState{Unmoved: unmoved}, older}
	}
	failing := func(d time.Duration, trying string) at {
		since := time.Now().Add(-d)
		return at{operator.PartitionState{Unmoved: time.Hour, TryingAt: &since, Trying: trying}, 0}
	}
	waiting := func(p at, by string) at {
		p.Batch = &operator.Batch{By: by}
		return p
	}
	one := failing(88*time.Second, "event 1 at offset 7, attempt 4: refused")
	two := failing(80*time.Second, "event 2 at offset 9, attempt 7: refused")
	again := operator.ConsumerDiagnosis{ConsumerState: operator.ConsumerState{Starts: 6, StartsOn: "h1"}}
	for name, c := range map[string]struct {
		of       operator.ConsumerDiagnosis
		left     string
		list     []at
		severity Severity
		part     string
		next     string
	}{
		"several say the same": {
			list: []at{one, two, one, two}, severity: Fail, next: "inbox resume --consumer=c --topic=t --partition=0",
			part: "the effect fails: refused: 4 of 4 partitions, the first is t/0 (at 0 of 100), since 1m28s\n",
		},
		"fails at first": {
			list: []at{failing(20*time.Second, "x")}, severity: Warn,
			part: "the effect fails: x: t/0 (at 0 of 100), since 20s",
		},
		"killed": {
			list: killed(2), severity: Warn, part: "process of its worker: t/0 (at 0 of 100), counted runs: 2\n",
		},
		"killed again": {
			of: again, list: killed(5), severity: Fail, next: "inbox skip --consumer=c --topic=t --partition=0 --to=1",
			part: "an event ends the process of its worker: t/0 (at 0 of 100), counted runs: 5; a worker on h1 has " +
				"started 6 times within five minutes",
		},
		"starts again and again": {
			of: again, list: []at{still(time.Second, 9)}, severity: Warn, next: "exit code",
			part: "a worker on h1 has started 6 times within five minutes: t/0",
		},
		"starts no more": {
			of: again, left: "no worker runs it", list: []at{still(70*time.Second, 9)}, severity: Fail,
			part: "a worker on h1 has started 6 times within five minutes; no worker runs it: t/0",
		},
		"slow": {
			list: batch(2*time.Minute, 100*time.Second), severity: Warn, next: "EffectTimeout",
			part: "a batch has been running for 1m40s (w on 10.0.0.7): t/0",
		},
		"hangs":             {list: batch(time.Hour, 6*time.Minute), severity: Fail, part: "running for 6m0s"},
		"hidden":            {list: batch(time.Hour, -1), severity: Fail, part: "or less (grant pg_read_all_stats"},
		"batch after batch": {list: batch(20*time.Second, time.Second), severity: Warn, part: "9 records older"},
		"batches lose": {
			list: batch(70*time.Second, time.Second), severity: Fail, next: "pg_stat_activity",
			part: "batches run and end, and nothing is decided (w on 10.0.0.7): t/0 (at 0 of 100), unmoved for 1m10s",
		},
		"fails at a lock": {
			list: []at{waiting(failing(20*time.Second, "lock timeout"), "waiting for a lock of pid 7")}, severity: Warn,
			part: "the effect fails: lock timeout (now waiting for a lock of pid 7): t/0",
		},
		"not moved": {
			list: []at{still(20*time.Second, 0)}, severity: Warn, part: "nothing is decided, and no batch is running",
		},
		"not moved for long": {
			list: []at{still(70*time.Second, 9)}, severity: Fail, part: "nothing is decided",
			next: "--describe --all-groups --members",
		},
		"one partition": {
			list: []at{still(0, 1), still(0, 99)}, severity: Warn, next: "More workers do not help",
			part: "100 records older than 40s are not decided, 99 % of them in t/1",
		},
		"all partitions": {
			list: []at{still(0, 50), still(0, 50), still(0, 50)}, severity: Warn, part: "33 % of them in t/0",
			next: "over 3 partitions",
		},
		"late by seconds": {list: []at{still(0, 0)}, severity: OK, part: "no record older than 40s"},
	} {
		n := len(c.list)
		l := lag{of: n, looked: n, left: c.left, starts: restarts(c.of), waits: map[cause]*waitingList{}}
		for i, p := range c.list {
			p.Topic, p.Partition = "t", int32(i)
			l.add(p.PartitionState, kafka.PartitionOffsets{
				LastOffset: 100, Offsets: map[int64]time.Time{p.older: {}, 100: {}},
			}, -1)
		}
		var f findings
		f.lag("c", l)
		severity, text := worst(f.list, "progress c")
		if all := whole(f.list, "progress c"); severity != c.severity || !strings.Contains(text, c.part) ||
			!strings.Contains(all, c.next) || len(f.list) != 1 {
			t.Errorf("%s: %s %s, want %s with %q and %q", name, severity, all, c.severity, c.part, c.next)
		}
	}
}

// TestLeft: a consumer has no worker once its programs have missed two of their reports, and nothing moves.
func TestLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reported, unmoved time.Duration
		batch, left       bool
	}{
		"it has missed one":  {reported: 35 * time.Second, unmoved: time.Hour},
		"it has missed two":  {reported: 50 * time.Second, unmoved: 50 * time.Second, left: true},
		"something moves":    {reported: time.Hour, unmoved: time.Second},
		"a batch is running": {reported: time.Hour, unmoved: time.Hour, batch: true},
	} {
		at := time.Now().Add(-c.reported)
		p := operator.PartitionState{Unmoved: c.unmoved}
		if c.batch {
			p.Batch = &operator.Batch{}
		}
		d := operator.ConsumerDiagnosis{}
		d.ReportedAt, d.Partitions = &at, []operator.PartitionState{p}
		if got := left(d); (got != "") != c.left {
			t.Errorf("%s: %q", name, got)
		}
		d.SeenAt = at.Add(-time.Second)
		if got := left(d); c.left != strings.Contains(got, "or one without Inbox.Run") {
			t.Errorf("%s, and it has reported at its start alone: %q", name, got)
		}
	}
}

// TestEffectErrorIsCut: where it fails stays in sight behind it.
func TestEffectErrorIsCut(t *testing.T) {
	t.Parallel()
	p := operator.PartitionState{Trying: "event x at offset 3, attempt 2: " + strings.Repeat("é", 1000)}
	if got := effectError(p); got != strings.Repeat("é", 300)+"…" {
		t.Error(got)
	}
}
