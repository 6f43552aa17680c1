package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMemory: the process stays below 200 MB while it drains large events, and many of them.
func TestMemory(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("needs /proc")
	}
	if testing.Short() {
		t.Skip("writes 130 MB")
	}
	db, topic := outboxDB(t), kafkatest.Topic(t, 3)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_COMPRESSION", "none", "GOMEMLIMIT", "")
	// Inserted before the relay starts, so that every claim has the maximal size.
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select $1, g::text, 'T', convert_to(repeat('x', 1000000), 'UTF8') from generate_series(1, 100) g`, topic)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select $1, g::text, 'T', convert_to(repeat('x', 512), 'UTF8') from generate_series(1, 50000) g`, topic)
	relay, process := ownProcess(t, env)
	awaitDrained(t, db)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var kB int
	if _, err := fmt.Sscan(text, &kB); err != nil {
		t.Fatalf("%v in %s", err, status)
	}
	t.Logf("at most %d MB", kB>>10)
	if kB > 200<<10 {
		t.Errorf("peak memory is %d MB, promised are 200", kB>>10)
	}
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d", code)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 0 {
		t.Errorf("%d events are left", n)
	}
}
