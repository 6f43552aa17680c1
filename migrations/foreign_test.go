package migrations_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestForeignTableIsRefusedAndUntouched(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]struct{ sql, in string }{
		"table of the first set": {"create table outbox_lane (mine int)", "already has outbox_lane,"},
		"a view":                 {"create view outbox_event as select 1 as mine", "already has outbox_event,"},
		// What is left of a table that was renamed: beside it ours would draw its ids from a sequence of another name.
		"the sequence of ids": {
			"create sequence outbox_event_id_seq; create table a (mine int)",
			"already has outbox_event_id_seq,",
		},
		"the archive's sequence": {
			"create sequence outbox_archive_pos_seq; create table a (mine int)",
			"already has outbox_archive_pos_seq,",
		},
		"version table": {"create table effectonce_migration (mine int)", "effectonce_migration is not a " +
			"version table of ours"},
		"version table, a view": {
			"create view effectonce_migration as select 1 as mine",
			"effectonce_migration is not a version table of ours",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, made.sql)
			before := relations(t, db, db.Schema)
			err := migrations.Up(t.Context(), config(t, db.URL), migrations.Options{})
			if !errors.Is(err, migrations.ErrForeign) || !strings.Contains(err.Error(), made.in) {
				t.Errorf("got %v", err)
			}
			if after := relations(t, db, db.Schema); !slices.Equal(before, after) {
				t.Errorf("the schema had %q, and has %q", before, after)
			}
			db.Exec(t, "select mine from "+before[0])
		})
	}
}

// The second set meets a foreign table: the first one stays as it is, and the answer names the table.
func TestForeignTableInALaterSet(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	upFrom(t, two(), db.URL, migrations.Options{Sets: []migrations.Set{"a"}})
	db.Exec(t, "create table b_one (mine int)")
	err := migrations.UpFrom(t.Context(), two(), config(t, db.URL), migrations.Options{})
	if !errors.Is(err, migrations.ErrForeign) || !strings.Contains(err.Error(), "already has b_one,") {
		t.Errorf("got %v", err)
	}
	upFrom(t, two(), db.URL, migrations.Options{Sets: []migrations.Set{"a"}})
	db.Exec(t, "select mine from b_one")
}

// A table that a migration of ours drops and makes anew is not foreign.
func TestOwnTableMadeAnew(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	upFrom(t, one(), db.URL, migrations.Options{})
	root := two()
	root["a/10002_a.sql"] = sql("drop table a_one;\ncreate table a_one (j int);")
	upFrom(t, root, db.URL, migrations.Options{})
}
