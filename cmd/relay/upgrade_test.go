package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestUpgrade: the relay of the last release and the current one share an outbox under load, with two workers behind
// them. The schemas are migrated while the old ones work; then the new ones join; then the old ones are started again,
// as after a rollback. Every event is in Kafka, first occurrences are in order per key, and each event has one effect,
// in the same order.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	old, tag := lastRelease(t)
	db, topic := pgtest.New(t), kafkatest.Topic(t, 3)
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_LEASE", "5s")
	migrateWith(t, old, env)
	upgrade := func() { inventNextVersion(t, db) }
	if tag != "" {
		upgrade = func() { migrateWith(t, builtBinary(t), env) }
	}

	stop, appended := load(t, db, topic)
	first, _ := processOf(t, old, env.with("RELAY_NAME", "old"))
	first.awaitSettled(200)
	workers := newLedger(t, topic)
	oldWorker := workers.member()
	workers.awaitEffects(1)
	upgrade()
	first.awaitSettled(200)
	workers.inventNextVersion()
	workers.awaitEffects(1)
	second, _ := ownProcess(t, env.with("RELAY_NAME", "new"))
	first.awaitSettled(200)
	second.awaitSettled(200)
	workers.member()

	first.signal()
	oldWorker()
	if code := first.end(); code != codeOK {
		t.Fatalf("the old relay ended with %d: %s", code, first.output())
	}
	again, _ := processOf(t, old, env.with("RELAY_NAME", "old again"))
	again.awaitSettled(200)
	second.awaitSettled(200)
	workers.member()
	workers.awaitEffects(1)

	stop()
	awaitDrained(t, db)
	workers.judge(appended())
	count := map[string]int{}
	next := map[string]int{}
	for _, r := range kafkatest.ReadAll(t, topic) {
		key, n := string(r.Key), mustAtoi(t, string(r.Value))
		count[key]++
		if n > next[key] {
			t.Fatalf("key %s: %d first occurs where %d was due", key, n, next[key])
		}
		next[key] = max(next[key], n+1)
	}
	total := 0
	for _, n := range next {
		total += n
	}
	if total != appended() {
		t.Errorf("%d different events in Kafka, %d were appended", total, appended())
	}
}

// lastRelease builds the relay of the last tag before this commit. Without a tag it returns the current relay and an
// empty tag.
func lastRelease(t *testing.T) (path, tag string) {
	t.Helper()
	out, err := exec.Command("git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^").Output()
	tag = strings.TrimSpace(string(out))
	if err != nil || tag == "" {
		t.Log("there is no release before this commit: this relay acts as the old one, and the schema's next " +
			"version is invented")
		return builtBinary(t), ""
	}
	dir := t.TempDir()
	archive := exec.Command("git", "archive", "--format=tar", tag)
	archive.Dir = "../.."
	content, err := archive.Output()
	if err != nil {
		t.Fatalf("git archive %s: %v", tag, err)
	}
	unpack(t, content, dir)
	path = filepath.Join(dir, "relay-"+tag)
	build := exec.Command("go", "build", "-o", path, "./cmd/relay")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", tag, err, out)
	}
	t.Logf("the old relay is %s", tag)
	return path, tag
}

func unpack(t *testing.T, content []byte, dir string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && h.Typeflag == tar.TypeDir {
			err = root.MkdirAll(h.Name, 0o755)
		} else if err == nil && h.Typeflag == tar.TypeReg {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = root.WriteFile(h.Name, b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// migrateWith runs the migrate command of a binary.
func migrateWith(t *testing.T, path string, env environment) {
	t.Helper()
	cmd := exec.Command(path, "migrate", "--sets", "outbox")
	cmd.Env = environment{"RELAY_DATABASE_URL": env["RELAY_DATABASE_URL"]}.process()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
}

// inventNextVersion applies a migration that extends every table in the relay's statements, and two more: a release may
// have several.
func inventNextVersion(t *testing.T, db *pgtest.DB) {
	t.Helper()
	list, err := migrations.Applied(t.Context(), db.Pool, migrations.Options{Sets: []migrations.Set{migrations.Outbox}})
	if err != nil {
		t.Fatal(err)
	}
	last := list[len(list)-1].Version
	for n, sql := range []string{
		`alter table outbox_event add column invented text not null default 'x'; alter table outbox_lane add column invented bigint`,
		`alter table outbox_claim add column invented int; alter table relay_member add column invented int default 1`,
		`create table outbox_invented (i int); create index outbox_event_invented on outbox_event (invented)`,
	} {
		migrateByHand(t, db, sql, last+1+int64(n))
	}
}

// migrateByHand migrates as a DBA does: it takes the locks under load, and retries if that fails.
func migrateByHand(t *testing.T, db *pgtest.DB, sql string, version int64) {
	t.Helper()
	pgtest.Await(t, "migration", func() (bool, error) {
		_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(
			`do $$ begin perform set_config('lock_timeout', '20s', true); %s;
			insert into effectonce_migration (version_id, is_applied) values (%d, true); end $$`, sql, version))
		if pgerr.Retry(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// load appends to 50 keys until it is stopped, a few events at a time, which a slow machine can follow; the payloads of
// a key count up from 0.
func load(t *testing.T, db *pgtest.DB, topic string) (stop func(), appended func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done, n := make(chan error, 1), 0
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			// Not ctx: an interrupted statement may have been committed.
			if _, err := db.Pool.Exec(context.WithoutCancel(ctx), `insert into outbox_event (topic, key, type, payload)
				select $1, 'k' || (g % 50), 'Load', convert_to((g / 50)::text, 'UTF8')
				from generate_series($2::int, $2::int + 49) g`, topic, n); err != nil {
				done <- err
				return
			}
			n += 50
		}
		done <- nil
	}()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-done; err != nil {
				t.Errorf("appending: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop, func() int { return n }
}

var settledMetric = regexp.MustCompile(`(?m)^effectonce_relay_settled_events_total (\S+)$`)

// settled returns the relay's own count.
func (i *instance) settled() (int, error) {
	_, body, err := i.get("/metrics")
	if err != nil {
		return 0, err
	}
	m := settledMetric.FindStringSubmatch(body)
	if m == nil {
		return 0, errors.New("no count of settled events")
	}
	f, err := strconv.ParseFloat(m[1], 64) // a large number is 1e+06
	return int(f), err
}

// awaitSettled waits until the relay has settled more events.
func (i *instance) awaitSettled(more int) {
	i.t.Helper()
	before := -1
	pgtest.Await(i.t, "more settled events", func() (bool, error) {
		n, err := i.settled()
		if before < 0 {
			before = n
		}
		return n >= before+more, err
	})
}

func mustAtoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
