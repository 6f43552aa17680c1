package operator_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestOpenTransactionsThatAppended: a transaction that has appended and stays open is named. One that has not is none
// of the outbox's.
func TestOpenTransactionsThatAppended(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	open := func(name, statement string) (pid int32, end func()) {
		conn := db.Connect(t)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{`set application_name = '` + name + `'`, statement} {
			if _, err := tx.Exec(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		return int32(conn.PgConn().PID()), func() {
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	pid, end := open("import", `insert into outbox_event (topic, key, type) values ('t', 'k', 'T')`)
	_, endOther := open("report", `select count(*) from outbox_event`)
	list, err := operator.ReadOpen(t.Context(), db.Pool, 0)
	if err != nil || len(list) != 1 || list[0].PID != pid || list[0].Application != "import" ||
		list[0].User == "" || list[0].State != "idle in transaction" || list[0].For <= 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := operator.ReadOpen(t.Context(), db.Pool, time.Hour); err != nil || len(list) != 0 {
		t.Errorf("for an hour: %+v, %v", list, err)
	}
	if st, err := operator.ReadStatus(t.Context(), db.Pool, db.Schema); err != nil || len(st.Open) != 0 {
		t.Errorf("for a minute: %+v, %v", st.Open, err)
	}
	end()
	endOther()
	if list, err := operator.ReadOpen(t.Context(), db.Pool, 0); err != nil || len(list) != 0 {
		t.Errorf("after its end: %+v, %v", list, err)
	}
}

// TestStatusOldestParkedKey: the status has the age of the key that has been parked for longest. An event that was
// parked alone has no key that waits.
func TestStatusOldestParkedKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	parkedFor := func() time.Duration {
		st, err := operator.ReadStatus(t.Context(), db.Pool, db.Schema)
		if err != nil {
			t.Fatal(err)
		}
		return st.ParkedFor
	}
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic,
			key, type, content_type, created_at, parked_at)
		values (1, 1, true, false, 1, gen_random_uuid(), '', '', 't', '', 'T', '', now(), now() - interval '9 hours')`)
	if age := parkedFor(); age != 0 {
		t.Errorf("without a parked key: %v", age)
	}
	db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, since, reason, code) values
		(1, '', 't', 'a', now() - interval '1 hour', 'r', 'c'), (2, '', 't', 'b', now() - interval '3 hours', 'r', 'c')`)
	if age := parkedFor(); age < 3*time.Hour || age > 4*time.Hour {
		t.Errorf("the oldest key is parked for 3 hours: %v", age)
	}
}
