package relay_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// insertEverywhere puts one event of a key into each place where an event can be; its type names the place.
func insertEverywhere(t *testing.T, db *pgtest.DB, key string) {
	t.Helper()
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select 'payments', $1, p, 'x' from unnest(array['waiting', 'claimed', 'held', 'parked', 'archived']) p`, key)
	db.Exec(t, `insert into outbox_claim (lane, first_seq, ids, seqs)
		select lane, 41, array[id], array[41::bigint] from outbox_event where type = 'claimed'`)
	db.Exec(t, `with gone as (delete from outbox_event where type = 'held' returning *)
		insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type, content_type,
			created_at)
		select lane, id, topic, 0, 40, false, message_id, source, tenant, key, type, content_type, created_at from gone`)
	db.Exec(t, `with gone as (delete from outbox_event where type = 'parked' returning *)
		insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source, tenant,
			topic, key, type, content_type, created_at)
		select lane, id, true, false, 1, 'too large', 'MESSAGE_TOO_LARGE', message_id, source, tenant, topic, key, type,
			content_type, created_at from gone`)
	db.Exec(t, `with gone as (delete from outbox_event where type = 'archived' returning *)
		insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type,
			created_at)
		select 'e.1', lane, 39, id, message_id, source, tenant, topic, key, type, content_type, created_at from gone`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, message_id) values (now() + interval '1 day',
		'payments', $1, 'scheduled', gen_random_uuid())`, key)
}

func places(f operator.Found) string {
	var all []string
	for _, e := range f.Events {
		all = append(all, e.Where)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestFind: an event is found in every place, by its key, by its message id and by its id where an index allows it.
func TestFind(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	insertEverywhere(t, db, "4711")
	fill(t, db, 100, 10)
	o := newOperator(t, db)
	find := func(text string) operator.Found {
		t.Helper()
		f, err := o.Find(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := find("4711")
	if places(f) != "claimed held parked scheduled waiting" || len(f.Unsearched) != 1 ||
		!strings.Contains(f.Unsearched[0], "archive") {
		t.Errorf("by key: %+v", f)
	}
	for _, e := range f.Events {
		if e.Where != e.Type || e.Key != "4711" || e.CreatedAt.IsZero() || (e.At == nil) != (e.Where == "waiting" ||
			e.Where == "claimed") || (e.Seq != 0) != (e.Where == "claimed" || e.Where == "held") {
			t.Errorf("%+v", e)
		}
	}
	rows := pgtest.One[[]string](t, db, `select array_agg(type || ' ' || message_id || ' ' || id) from (
		select type, id, message_id from outbox_event where key = '4711'
		union all select type, id, message_id from outbox_held union all select type, id, message_id from outbox_parked
		union all select type, 0, message_id from outbox_scheduled
		union all select type, 0, message_id from outbox_archive) a`)
	for _, r := range rows {
		where, id, _ := strings.Cut(r, " ")
		messageID, id, _ := strings.Cut(id, " ")
		if f := find(messageID); places(f) != where || f.Events[0].MessageID.String() != messageID ||
			len(f.Unsearched) != 0 {
			t.Errorf("%s by message id: %+v", where, f)
		}
		if id == "0" {
			continue
		}
		if f := find(id); places(f) != where {
			t.Errorf("%s by id: %+v", where, f)
		}
	}
	for _, none := range []string{"", "nobody's", "\x00", "\xff", "-1", "99999999999999999999"} {
		if f := find(none); len(f.Events) != 0 {
			t.Errorf("%q: %+v", none, f)
		}
	}
}

// TestFindSaysWhatItLeavesOut: an event behind ten thousand others of its lane is not found, and Find reports the
// limit.
func TestFindSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_event (topic, key, type) select 'payments', 'k', 'T' from generate_series(1, 10001)`)
	o := newOperator(t, db)
	f, err := o.Find(t.Context(), "k")
	if err != nil || len(f.Events) != 100 || len(f.Unsearched) != 3 ||
		!strings.Contains(f.Unsearched[0], "Of what is waiting, only the first 10000 events") ||
		!strings.Contains(f.Unsearched[2], "Of what is waiting, no more than 100 events are shown") {
		t.Errorf("%d, %q, %v", len(f.Events), f.Unsearched, err)
	}
	last := pgtest.One[string](t, db, `select message_id::text from outbox_event order by id desc limit 1`)
	if f, err = o.Find(t.Context(), last); err != nil || len(f.Events) != 0 || !slices.ContainsFunc(f.Unsearched,
		func(s string) bool { return strings.Contains(s, "for their message id") }) {
		t.Errorf("%+v, %v", f, err)
	}
	db.Exec(t, `insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type,
		created_at) select 'e.1', 0, n, 1, $1, '', '', 't', 'k', 'T', '', now() from generate_series(1, 101) n`, last)
	if f, err = o.Find(t.Context(), last); err != nil || len(f.Events) != 100 || !slices.Contains(f.Unsearched,
		"Of what is archived, no more than 100 events are shown: there may be more.") {
		t.Errorf("%d, %q, %v", len(f.Events), f.Unsearched, err)
	}
}
