package pgtest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/draw"
)

// Codes returns every SQLSTATE of an error or a warning that the server has a name for, from the list that is installed
// with it.
func Codes(t testing.TB, db *DB) []string {
	t.Helper()
	admin := (&DB{URL: db.AdminURL}).Connect(t)
	var list string
	err := admin.QueryRow(t.Context(),
		"select pg_read_file(setting || '/errcodes.txt') from pg_config where name = 'SHAREDIR'").Scan(&list)
	if err != nil {
		t.Fatalf("pgtest: the server's list of SQLSTATEs: %v", err)
	}
	var codes []string
	for _, m := range regexp.MustCompile(`(?m)^([0-9A-Z]{5})\s+[EW]\s`).FindAllStringSubmatch(list, -1) {
		codes = append(codes, m[1])
	}
	slices.Sort(codes)
	if codes = slices.Compact(codes); len(codes) < 200 {
		t.Fatalf("pgtest: %d SQLSTATEs in the server's list", len(codes))
	}
	return codes
}

// SomeCodes returns all Codes in the nightly run. Otherwise it returns one of each class, drawn by the seed, and those
// that are named.
func SomeCodes(t testing.TB, db *DB, always ...string) []string {
	t.Helper()
	codes := Codes(t, db)
	if draw.Nightly() {
		return codes
	}
	rnd := rand.New(rand.NewPCG(draw.Seed(t), 0))
	rnd.Shuffle(len(codes), func(i, j int) { codes[i], codes[j] = codes[j], codes[i] })
	classes := map[string]bool{}
	codes = slices.DeleteFunc(codes, func(code string) bool {
		class := code[:2]
		drawn := !classes[class]
		classes[class] = true
		return !drawn && !slices.Contains(always, code)
	})
	slices.Sort(codes)
	return codes
}

// DealCodes returns a function that deals out the Codes, so many at a time and in an order drawn by the seed, until it
// begins again. Each time it also draws so many of those that are known to the code under test.
func DealCodes(t testing.TB, db *DB, each, ofKnown int, known []string) func() []string {
	t.Helper()
	codes := Codes(t, db)
	rnd := rand.New(rand.NewPCG(draw.Seed(t), 1))
	rnd.Shuffle(len(codes), func(i, j int) { codes[i], codes[j] = codes[j], codes[i] })
	next := 0
	return func() []string {
		var hand []string
		for range each {
			hand = append(hand, codes[next%len(codes)])
			next++
		}
		for _, i := range rnd.Perm(len(known))[:ofKnown] {
			hand = append(hand, known[i])
		}
		slices.Sort(hand)
		return slices.Compact(hand)
	}
}

// Faults are triggers on all tables of a schema, which raise errors for rows that a test chooses.
type Faults struct{ db *DB }

// Fault is a class of rows, and when it fails.
type Fault struct {
	Place
	Field, Value string // the column by which rows are chosen, and its value as text
}

// Place is where a row is written.
type Place struct {
	Table string
	Op    string // INSERT, UPDATE or DELETE
	// Statement is the name in the first line of the statement, "" for any, and commit for the COMMIT after it.
	Statement string
}

// AtCommit is the Statement of a Place.
const AtCommit = "commit"

func (p Place) String() string { return fmt.Sprintf("%s, %s of %s", p.Statement, p.Op, p.Table) }

const makeFaults = `create table fault (relation text, op text, statement text, field text, value text, code text);
create index on fault (relation, op);
create table reached (relation text, op text, statement text);
create function raise_fault() returns trigger language plpgsql as $$
declare
	f record;
	r jsonb;
	statement text := case tg_when when 'AFTER' then 'commit'
		else coalesce(substring(current_query() from '^-- ([^\n]*)'), '') end;
begin
	for f in select * from fault where relation = tg_argv[0] and op = tg_op loop
		if f.value is null then
			insert into reached values (tg_argv[0], tg_op, statement);
			continue;
		end if;
		if r is null and tg_op = 'DELETE' then
			r := to_jsonb(old);
		elsif r is null then
			r := to_jsonb(new);
		end if;
		if r ->> f.field = f.value and (f.statement = statement or f.statement = '' and statement <> 'commit') then
			raise exception 'the fault of %', f.value using errcode = f.code;
		end if;
	end loop;
	if tg_op = 'DELETE' then
		return old;
	end if;
	return new;
end $$`

// NewFaults makes the triggers. None of them raises an error until Raise is called.
func NewFaults(t testing.TB, db *DB) *Faults {
	t.Helper()
	db.Exec(t, makeFaults)
	for _, table := range tablesOf(t, db) {
		db.Exec(t, "create trigger fault before insert or update or delete on "+table+
			" for each row execute function raise_fault('"+table+"')")
		db.Exec(t, "create constraint trigger late_fault after insert or update or delete on "+table+
			" deferrable initially deferred for each row execute function raise_fault('"+table+"')")
	}
	return &Faults{db}
}

func tablesOf(t testing.TB, db *DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), "select relname::text from pg_class where relnamespace = $1::regnamespace "+
		"and relkind in ('r', 'p') and not relispartition and relname not in ('fault', 'reached')", db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Record notes the places where rows are written, until the function that it returns is called. That one returns them.
func (f *Faults) Record(t testing.TB) (places func() []Place) {
	t.Helper()
	for _, table := range tablesOf(t, f.db) {
		f.db.Exec(t, "insert into fault (relation, op) values ($1, 'INSERT'), ($1, 'UPDATE'), ($1, 'DELETE')", table)
	}
	return func() []Place {
		t.Helper()
		f.db.Exec(t, "delete from fault where value is null")
		rows, err := f.db.Pool.Query(t.Context(), "select distinct relation, op, statement from reached "+
			"order by 1, 2, 3")
		if err != nil {
			t.Fatal(err)
		}
		places, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Place])
		if err != nil {
			t.Fatal(err)
		}
		f.db.Exec(t, "truncate reached")
		return places
	}
}

// Raise has rows fail with a SQLSTATE until lift is called.
func (f *Faults) Raise(t testing.TB, at Fault, code string) (lift func()) {
	t.Helper()
	args := []any{at.Table, at.Op, at.Statement, at.Field, at.Value}
	f.db.Exec(t, "insert into fault values ($1, $2, $3, $4, $5, $6)", append(args, code)...)
	return func() {
		t.Helper()
		f.db.Exec(t, "delete from fault where relation = $1 and op = $2 and statement = $3 and field = $4 "+
			"and value = $5", args...)
	}
}
