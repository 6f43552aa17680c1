package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP9_8_Commands: a consumer moves from ids to watermarks, halts at a new numbering, and continues when that is
// accepted.
func TestP9_8_Commands(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.handle(t, "k", "a", "b")
	stopped := func() {
		f.Exec(t, "update inbox_progress set updated_at = clock_timestamp() - interval '1 hour'")
		f.Exec(t, "update inbox_consumer set programs = '{}'")
	}
	stopped()
	f.must(t, "move", "--consumer", "ledger", "--to", "watermark", "--reason", "fewer rows")
	if text := f.must(t, "consumers"); !regexp.MustCompile(`(?m)^ledger +watermark and id +14 days`).MatchString(text) {
		t.Error(text)
	}
	in, err := inbox.New(f.Pool, "ledger", inbox.Config{Schema: f.Schema, Dedup: inbox.ByWatermark})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	do := in.Batch(func(_ context.Context, _ pgx.Tx, events []event.Event) error { n += len(events); return nil })
	const one, two = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1", "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.7"
	events := make([]event.Event, 2)
	for i := range events {
		events[i] = event.Event{
			ID: event.NewID(), Topic: "payments", Key: "k", Type: "T",
			Position: event.Position{Epoch: []string{one, two}[i], Seq: 1, Offset: int64(2 + i)},
		}
	}
	if _, err := do.Handle(t.Context(), events); err == nil || n != 1 {
		t.Fatalf("%d applied: %v", n, err)
	}
	if text := f.must(t, "consumers"); !strings.Contains(text, "new_numbering") ||
		!strings.Contains(text, "relay inbox accept --epoch "+two) {
		t.Error(text)
	}
	var said struct{ Partitions int }
	text := f.must(t, "accept", "--consumer", "ledger", "--epoch", two, "--reason", "nothing came twice", "--json")
	if err := json.Unmarshal([]byte(text), &said); err != nil || said.Partitions != 1 {
		t.Errorf("%s: %v", text, err)
	}
	if pgtest.One[int](t, f.DB, `select count(*) from inbox_progress where halted_at is not null`) != 0 {
		t.Error("the consumer is still halted")
	}
	if _, err := do.Handle(t.Context(), events); err != nil || n != 2 {
		t.Errorf("%d applied: %v", n, err)
	}
	if text := f.must(t, "audit"); !strings.Contains(text, "accept numbering") ||
		!strings.Contains(text, "move consumer") {
		t.Error(text)
	}
	f.Exec(t, "update inbox_progress set updated_at = clock_timestamp()")
	for want, args := range map[string]string{
		"stop its workers":           "move --consumer ledger --to offset --reason x",
		"--to is missing":            "move --consumer ledger --reason x",
		"is not the ce_epoch":        "accept --consumer ledger --epoch x --reason x",
		"--epoch is missing":         "accept --consumer ledger --reason x",
		"waits for numbering":        "accept --consumer email --epoch " + two + " --reason x",
		"knows no offsets":           "forget-offsets --consumer ledger --topic payments --reason x",
		"--topic is missing":         "forget-offsets --consumer ledger --reason x",
		"within the last two minute": "skip --consumer ledger --topic payments --partition 9 --to 1 --reason x",
		"which offset is handled":    "skip --consumer ledger --topic payments --partition 9 --reason x",
		"stop its workers first":     "retire --consumer ledger --reason x",
		"never started: relay":       "retire --consumer email --reason x",
		"--consumer is missing: a":   "forget-offsets --topic t --reason x",
	} {
		if code, _, stderr := command(t, f.env,
			append([]string{"inbox"}, strings.Fields(args)...)...); code == codeOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	stopped()
	code, _, stderr := command(t, f.env, "inbox", "move", "--consumer", "ledger", "--to", "offset", "--reason", "x")
	if code == codeOK || !strings.Contains(stderr, "does not go by ids") {
		t.Errorf("move of a consumer that has moved: exit code %d: %s", code, stderr)
	}
}
