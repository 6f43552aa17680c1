package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/dump"
	"github.com/effectonce/effectonce/verify/roles"
)

// dumpLimit bounds the dump at the end.
const dumpLimit = 10 * time.Minute

// excused returns the deviations that faults explain: records of a deleted topic, and the order of keys that moved when
// their topic grew and the operator accepted it.
func excused() history.Allowed {
	return history.Allowed{Gone: map[string]bool{topicDoomed: true}, Grown: map[string]bool{topicGrowing: true}}
}

func (x *testbed) source(names ...string) dump.Site {
	return dump.Site{
		DB: x.admin, Brokers: x.kafka.Brokers(), Topics: names,
		Consumers: []dump.Consumer{{Name: roles.Consumer, Group: roles.Consumer, Topics: names}},
	}
}

// audit records committed offsets and the inbox every two seconds (I7), until end. It leaves out the topic that is
// recreated, because its offsets start again.
func (x *testbed) audit() (end func()) {
	w, err := history.Create(x.dir, "auditor")
	if err != nil {
		x.t.Fatal(err)
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(topics)), func(name string) bool { return name == topicDoomed })
	auditor := dump.NewAuditor(w, x.source(names...))
	stop := repeat(2*time.Second, func() {
		ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
		defer cancel()
		_ = auditor.Once(ctx) // it may fail during a fault; the next turn records the same
	})
	return func() {
		_ = stop()
		_ = w.Close()
	}
}

// judge checks the histories and reports the verdict.
func (x *testbed) judge(m *result, failures []string) {
	r := Report{
		Seed: x.seed, Duration: x.duration.String(), Brokers: x.brokers, Faults: m.done, NotMade: m.failed,
		Starts: x.supervisor.starts, TookEffect: x.observed.tookEffect, OthersContinued: x.observed.continued,
		Failures: slices.Concat(failures, m.notUndone, x.ineffectiveKinds(m.done, m.failedBegins)),
		Crashes:  x.supervisor.crashes, Kills: x.supervisor.killed(),
	}
	ctx, cancel := context.WithTimeout(context.Background(), dumpLimit)
	defer cancel()
	d, err := x.source(slices.Sorted(maps.Keys(topics))...).Read(ctx)
	if err != nil {
		x.t.Errorf("the dump: %v", err)
	}
	histories, err := history.ReadDir(x.dir)
	if err != nil {
		x.t.Errorf("the histories: %v", err)
	}
	r.Verdict = history.Check(history.Input{Histories: histories, Dump: d, Allowed: excused()})
	if x.tenants != nil {
		x.tenants.judge(&r.Verdict)
	}
	x.leaks(&r.Verdict)
	x.t.Log(report(r))
	if x.follow {
		x.logStreamed(&d)
	}
	if !r.Verdict.OK() {
		x.t.Errorf("violations, seed %d", x.seed)
	}
	for _, u := range r.Failures {
		x.t.Errorf("I8, seed %d: %s", x.seed, u)
	}
	for _, panicked := range x.supervisor.panics(x.t) {
		x.t.Errorf("seed %d: %s", x.seed, panicked)
	}
	x.write(r)
}

// logStreamed logs how many records came from the WAL; faults of the slot move lanes back to the table.
func (x *testbed) logStreamed(d *history.Dump) {
	n := 0
	for i := range d.Records {
		if d.Records[i].Lane == -1 {
			n++
		}
	}
	x.t.Logf("%d of %d records came from the WAL", n, len(d.Records))
}

// leaks searches the logs of processes and servers for secrets (I10).
func (x *testbed) leaks(into *history.Verdict) {
	for name, log := range x.supervisor.logs(x.t) {
		v, err := history.Leaks(name, strings.NewReader(string(log)), []string{roles.Canary, roles.CanaryPassword})
		if err != nil {
			x.t.Error(err)
		}
		into.Add(v)
	}
}

func report(r Report) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nfault\tmade\ttook effect\tthe others went on\n")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(w, "%s\t%d", kind, r.Faults[kind])
		if kindsWithCheck()[kind] {
			fmt.Fprintf(w, "\t%d\t%d", r.TookEffect[kind], r.OthersContinued[kind])
		}
		fmt.Fprintln(w)
	}
	for _, at := range slices.Sorted(maps.Keys(r.Kills)) {
		fmt.Fprintf(w, "killed at %s\t%d\n", at, r.Kills[at])
	}
	_ = w.Flush()
	for _, f := range r.NotMade {
		fmt.Fprintf(&b, "drawn and not made: %s\n", f)
	}
	for _, c := range r.Crashes {
		fmt.Fprintf(&b, "ended by itself: %s\n", c)
	}
	fmt.Fprintf(&b, "%d process starts\n%s", r.Starts, r.Verdict)
	return b.String()
}

// write appends the report to the file of envReport.
func (x *testbed) write(r Report) {
	name := os.Getenv(envReport)
	if name == "" {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			_, err = f.Write(append(line, '\n'))
			_ = f.Close()
		}
	}
	if err != nil {
		x.t.Errorf("the report: %v", err)
	}
}
