package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestCheckSaysWhatToRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, opt := range []migrations.Options{{}, {Schema: db.Schema}, {Schema: "not_there"}} {
		command := "relay migrate"
		if opt.Schema != "" {
			command += " --schema " + opt.Schema
		}
		err := migrations.Check(t.Context(), db.Pool, opt)
		if !errors.Is(err, migrations.ErrPending) || !strings.Contains(err.Error(), `"`+command+`"`) {
			t.Errorf("%+v: %v", opt, err)
		}
	}
	upFrom(t, one(), db.URL, migrations.Options{})
	// A single connection does as well as a pool.
	err := migrations.CheckFrom(t.Context(), two(), db.Connect(t), migrations.Options{})
	if !errors.Is(err, migrations.ErrPending) || !strings.Contains(err.Error(), "lacks 10002_a;") {
		t.Errorf("one version behind: %v", err)
	}
}

// TestNewerSchema: a binary runs on a later schema for as long as that says so. Without a word, on the next one.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	refused := func(db *pgtest.DB, want string) {
		t.Helper()
		check := migrations.CheckFrom(t.Context(), one(), db.Pool, migrations.Options{})
		again := migrations.UpFrom(t.Context(), one(), config(t, db.URL), migrations.Options{})
		for name, err := range map[string]error{"Check": check, "Up": again} {
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case want != "" && (!errors.Is(err, migrations.ErrNewer) || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		// The other set is not ahead, and may be all that a binary uses.
		if err := migrations.CheckFrom(t.Context(), one(), db.Pool,
			migrations.Options{Sets: []migrations.Set{"b"}}); err != nil {
			t.Errorf("set b: %v", err)
		}
	}
	next := two()
	next["a/10003_a.sql"] = sql("alter table a_one add column k int;")

	silent := pgtest.New(t)
	upFrom(t, two(), silent.URL, migrations.Options{})
	refused(silent, "")
	upFrom(t, next, silent.URL, migrations.Options{})
	refused(silent, "is at version 10003 and serves binaries from 10002 on; this one knows 10001")

	for _, table := range []string{"a_one", "b_one"} {
		// A declaration counts for the set that its number is of, whichever table it stands on.
		said := pgtest.New(t)
		upFrom(t, next, said.URL, migrations.Options{})
		said.Exec(t, "comment on table "+table+" is 'effectonce: binaries from 10001 on'")
		refused(said, "")
		said.Exec(t, "comment on table "+table+" is 'effectonce: binaries from 10003 on'")
		refused(said, "serves binaries from 10003 on")
		// What is no declaration says nothing.
		said.Exec(t, "comment on table "+table+" is 'effectonce: binaries from 10001 on, I think'")
		refused(said, "serves binaries from 10002 on")
	}
}

func TestApplied(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	opt := migrations.Options{Sets: []migrations.Set{migrations.Outbox}}
	list, err := migrations.Applied(t.Context(), db.Pool, opt)
	if err != nil || len(list) == 0 {
		t.Fatalf("before Up: %+v, %v", list, err)
	}
	if first := list[0]; first.Applied || first.Version != 10001 || first.Name != "10001_outbox" ||
		first.Set != migrations.Outbox || !first.AppliedAt.IsZero() {
		t.Errorf("before Up: %+v", first)
	}
	up(t, db.URL, opt)
	db.Exec(t, "insert into effectonce_migration (version_id, is_applied) values (19999, true), (39999, true)")
	list, err = migrations.Applied(t.Context(), db.Pool, opt)
	if err != nil {
		t.Fatal(err)
	}
	if first := list[0]; !first.Applied || first.AppliedAt.IsZero() {
		t.Errorf("after Up: %+v", first)
	}
	// A version of this set that is not known here is shown; a version of another set is not.
	if last := list[len(list)-1]; last.Version != 19999 || last.Name != "" || !last.Applied {
		t.Errorf("unknown version: %+v", last)
	}
}
