package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// payment is an operation with an unknown outcome.
func payment(value string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: value},
		Fingerprint: idempotency.Fingerprint{Version: 1}, Input: []byte("personal"),
	}
}

// makeStuck makes recovery leave operations to an operator.
func makeStuck(t *testing.T, s *pgstore.Store, values ...string) *guard.Guard {
	t.Helper()
	g, err := guard.New(s, guard.Config{RecoverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		_, err := g.Run(t.Context(), payment(value), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			_, err := op.CallAs(ctx, "charge", "provider_"+value, func(context.Context, guard.Call) ([]byte, error) {
				return nil, errors.New("no answer")
			})
			return idempotency.Result{}, err
		})
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
	}
	handlers := map[string]recovery.Handler{"payment.create": {}}
	worker, err := recovery.New(s, handlers, recovery.Config{Grace: -1, Parallel: 20})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := worker.Once(t.Context()); n != len(values) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	return g
}

// TestKeysCommands: an operator sees the stuck operations, and ends each in its own way.
func TestKeysCommands(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	s, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	g := makeStuck(t, s, "happened", "did-not", "again", "all-1", "all-2")

	for _, args := range [][]string{{"keys", "stuck"}, {"keys", "stuck", "--json", "--operation=payment.create"}} {
		code, text, stderr := command(t, env, args...)
		if code != codeOK || strings.Count(text, "PROVIDER_REQUEST_SENT") != 5 ||
			!strings.Contains(text, "provider_happened") || strings.Contains(text, "personal") {
			t.Errorf("%v, exit code %d: %s\n%s", args, code, text, stderr)
		}
	}
	if code, text, _ := command(t, env, "keys", "stuck", "--operation=another", "--json"); code != codeOK ||
		strings.TrimSpace(text) != "[]" {
		t.Errorf("exit code %d: %s", code, text)
	}

	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte(`{"payment":"p1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(value string, args ...string) []string {
		return append([]string{"--tenant=acme", "--operation=payment.create", "--key=" + value}, args...)
	}
	for want, args := range map[string][]string{
		"--sure":              append([]string{"keys", "free"}, of("did-not")...),
		"--code":              append([]string{"keys", "complete"}, of("happened", "--code=500")...),
		"--reason":            append([]string{"keys", "retry"}, of("again")...),
		"--reason is":         append([]string{"keys", "free", "--sure"}, of("did-not")...),
		"--reason is missing": append([]string{"keys", "complete", "--code=201"}, of("happened")...),
		"--all":               append([]string{"keys", "retry", "--all", "--reason=r"}, of("again")...),
		"key":                 {"keys", "free", "--sure", "--operation=payment.create"},
	} {
		if code, _, stderr := command(t, env, args...); code != codeUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	for _, args := range [][]string{
		append([]string{"keys", "complete"}, of("happened", "--code=201", "--resource=p1", "--body="+body,
			"--reason=the bank says so", "--operator=ann")...),
		append([]string{"keys", "free", "--sure"}, of("did-not", "--reason=the bank knows nothing")...),
		append([]string{"keys", "retry"}, of("again", "--reason=the bank is back")...),
		{"keys", "retry", "--all", "--operation=payment.create", "--reason=the bank is back"},
	} {
		code, stdout, stderr := command(t, env, args...)
		if code != codeOK || args[1] == "free" && !strings.Contains(stdout, "Nothing tries again by itself") {
			t.Errorf("%v: exit code %d: %s%s", args, code, stdout, stderr)
		}
	}
	never := func(context.Context, *guard.Op) (idempotency.Result, error) {
		t.Error("an operation ran")
		return idempotency.Result{}, nil
	}
	if res, err := g.Run(t.Context(), payment("happened"), never); err != nil || res.Code != 201 ||
		string(res.Body) != `{"payment":"p1"}` || !res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	if _, found, err := s.Get(t.Context(), payment("did-not").Key); found || err != nil {
		t.Errorf("the freed key still exists: %v", err)
	}
	taken, err := s.Recover(t.Context(), store.RecoverOptions{Limit: 10, Lease: time.Hour, Token: "r"})
	if err != nil || len(taken) != 3 || taken[0].Record.Reason != "by hand: the bank is back" {
		t.Errorf("%+v, %v", taken, err)
	}
	if code, _, stderr := command(t, env, append([]string{"keys", "free", "--sure", "--reason=r"},
		of("again")...)...); code == codeOK || !strings.Contains(stderr, "is not stuck") {
		t.Errorf("a key that recovery works on: exit code %d: %s", code, stderr)
	}
	if code, text, stderr := command(t, env, "keys", "unknown"); code != codeOK || strings.Count(text, "acme") != 3 {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
	if code, text, stderr := command(t, env, "keys", "audit"); code != codeOK || strings.Count(text, "retry") != 3 ||
		!strings.Contains(text, "the bank says so") || !strings.Contains(text, "ann") ||
		!strings.Contains(text, "the bank knows nothing") {
		t.Errorf("exit code %d: %s\n%s", code, text, stderr)
	}
}

// TestKeysCommandsSayWhatIsMissing: in a database without the tables of keys.
func TestKeysCommandsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	if code, _, stderr := command(t, env, "keys", "stuck"); code != codeSchema ||
		!strings.Contains(stderr, "relay migrate --sets idempotency") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestRoleIdempotency: the role of services and recovery suffices for them and for operators, and for no more.
func TestRoleIdempotency(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	pool := h.pool(t, "idempotency")
	s, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	paid := func(context.Context, pgx.Tx) (idempotency.Result, error) { return idempotency.Result{Code: 201}, nil }
	for i, replayed := range []bool{false, true} {
		if res, err := s.InTx(t.Context(), payment("in-tx"), paid); err != nil || res.Replayed != replayed {
			t.Errorf("%d: %+v, %v", i, res, err)
		}
	}
	makeStuck(t, s, "stuck-1", "stuck-2")
	env := environment{"RELAY_DATABASE_URL": h.url(t, h.user("idempotency"))}
	for _, args := range []string{
		"keys stuck", "keys free --sure --tenant=acme --operation=payment.create --key=stuck-1 --reason=r",
		"keys retry --all --operation=payment.create --reason=r", "keys unknown", "keys audit",
	} {
		if code, _, stderr := command(t, env, strings.Fields(args)...); code != codeOK {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	if _, err := s.Sweep(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Unknown != 1 || st.Stuck != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := s.NextBlock(t.Context(), "numbers", 10); err != nil {
		t.Error(err)
	}
	refused(
		t, pool, `truncate idempotency_key`, `drop table idempotency_key`,
		`alter table idempotency_key disable trigger all`, `delete from idempotency_block`,
		`update idempotency_audit set reason = 'r'`, `delete from idempotency_audit`, `select setval('idempotency_fence', 1)`, `insert into effectonce_migration default values`, `create table x ()`,
		`select from outbox_event`, `insert into outbox_event (topic, type) values ('t', 'T')`,
		`select from inbox_message`,
	)
}

// TestDoctorTellsOfStuckKeys: operations that wait for a person are a finding, with what lists them.
func TestDoctorTellsOfStuckKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	s, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	if _, text, stderr := command(t, env, "doctor"); !strings.Contains(text, "no operation waits for a person") {
		t.Errorf("%s\n%s", text, stderr)
	}
	makeStuck(t, s, "a", "b")
	_, text, stderr := command(t, env, "doctor")
	for _, want := range []string{
		"warn  idempotency keys", "2 operations may or may not have happened, and recovery gave up",
		"run:   relay keys stuck --schema=" + db.Schema + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s\n%s", want, text, stderr)
		}
	}
	db.Exec(t, `update idempotency_key set due_at = clock_timestamp() - interval '3 min' where key = 'b'`)
	if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "1 operation may or may not have happened") ||
		!strings.Contains(text, "1 operation has been due for more than two minutes, and no recovery worker takes") ||
		!strings.Contains(text, "run:   relay keys unknown --schema="+db.Schema+"\n") {
		t.Errorf("of an operation that no recovery worker takes:\n%s", text)
	}
	outbox := outboxDB(t)
	if _, text, _ := command(t, settings(outbox), "doctor"); strings.Contains(text, "idempotency keys") {
		t.Errorf("it tells of keys where none are:\n%s", text)
	}
}
