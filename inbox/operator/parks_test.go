package operator_test

import (
	"testing"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestParks: what is parked now is compared with the effects since then, whatever went well before.
func TestParks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  []string
		want operator.Parks
	}{
		"all": {nil, operator.Parks{Events: 12, Code: "fee_missing", OfCode: 11}},
		"a few": {[]string{
			`insert into inbox_message (consumer_name, message_id) select 'ledger', id(n) from generate_series(20, 49) n`,
		}, operator.Parks{Events: 12, Code: "fee_missing", OfCode: 11, Effects: 30}},
		"by number, and without an effect": {
			[]string{`update inbox_consumer set dedup = 'watermark'`},
			operator.Parks{Events: 12, Code: "fee_missing", OfCode: 11},
		},
		"by number, and with effects": {
			[]string{
				`update inbox_consumer set dedup = 'watermark'`,
				`update inbox_progress set effect_at = clock_timestamp()`,
			},
			operator.Parks{Events: 12, Code: "fee_missing", OfCode: 11, Effects: 1000},
		},
		"before": {[]string{`update inbox_parked set parked_at = parked_at - interval '3 min'`}, operator.Parks{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, "inbox")
			pgtest.AwaitDay(t, db)
			in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema})
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, sql := range append([]string{
				`create function id(n int) returns uuid language sql as $$ select (lpad(to_hex((extract(epoch
					from clock_timestamp()) * 1000)::bigint), 12, '0') || '7000800000000000' || lpad(n::text, 4, '0'))::uuid $$`,
				`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, effect_at)
				values ('ledger', 't', 0, 0, 0, clock_timestamp() - interval '1 min')`,
				`insert into inbox_message (consumer_name, message_id) select 'ledger', id(n) from generate_series(0, 9) n`,
				`insert into inbox_parked_key (consumer_name, key_hash, tenant, topic, key, code)
				values ('ledger', sha256('k'), '', 't', 'k', 'fee_missing')`,
				`insert into inbox_parked (consumer_name, message_id, key_hash, kind, topic, record_partition,
					record_offset, record_millis, code)
				select 'ledger', id(n), sha256('k'), case n when 1 then 'failed' else 'behind' end, 't', 0, n, 0,
					case n when 12 then 'other' else '' end from generate_series(1, 12) n`,
			}, c.sql...) {
				db.Exec(t, sql)
			}
			d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
			if err != nil || len(d.Consumers) != 1 || d.Consumers[0].Parks != c.want {
				t.Errorf("%+v, %v, want %+v", d.Consumers, err, c.want)
			}
		})
	}
}
