package main

import (
	"encoding/json"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, deadBroker)
	// Filled before: during an outage of Kafka a pump keeps its claim, and claims no later events.
	fill(t, db, "payments", 70)
	fill(t, db, "refunds", 30)
	running := inProcess(t, env.with("RELAY_NAME", "the-first", "RELAY_DRAIN_TIMEOUT", "0",
		"RELAY_RESTORE_CHECK", "false"))
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_lane where owner is not null`)
	pgtest.AwaitSQL(t, db, `select coalesce(sum(cardinality(ids)), 0) = 100 from outbox_claim`)

	code, table, stderr := command(t, env, "status")
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`(?m)^BACKLOG +OLDEST\n100 +\d`, `(?m)^the-first +[0-9a-f-]{36} +0-31 +0 +100 +\d`, `(?m)^payments +70 +\d`,
		`(?m)^refunds +30 +\d`,
	} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("no line like %s in\n%s", want, table)
		}
	}

	code, text, stderr := command(t, env, "status", "--json")
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var st operator.Status
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatal(err)
	}
	if st.Backlog != 100 || len(st.Lanes) != 32 || len(st.Topics) != 2 || st.Lanes[0].Name != "the-first" ||
		st.Oldest <= 0 {
		t.Errorf("%s", text)
	}
	running.signal()
	running.end()
	if _, table, _ = command(t, env, "status"); !regexp.MustCompile(`(?m)^- +\(free\) +0-31 +0 +100 `).MatchString(
		table) {
		t.Errorf("free lanes look like this:\n%s", table)
	}
}

// TestStatusOfWhatIsAside: held and parked events are neither published nor part of the backlog. Status shows them.
func TestStatusOfWhatIsAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, statusOfWhatIsAside) // ages are exact
}

func statusOfWhatIsAside(t *testing.T) {
	var text strings.Builder
	paused := time.Now().Add(-time.Hour)
	if err := writeStatus(&text, operator.Status{
		Lanes: []operator.LaneStatus{{Held: 50}, {Lane: 1, Held: 1, Parked: 2}},
		Aside: []operator.Topic{{Topic: "orders", Held: 41}, {
			Topic: "payments", Held: 10, PausedAt: &paused,
			PausedBy: "anna", Reason: "broken",
		}},
		ParkedFor: 3 * time.Hour,
		Open:      []operator.OpenStatus{{PID: 7, User: "app", State: "idle in transaction", For: time.Hour}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^HELD +PARKED +OLDEST KEY\n51 +2 +3h0m0s$`, `(?m)^orders +41 +- +- +-$`,
		`(?m)^payments +10 +1h0m0s +anna +broken$`, `(?m)^7 +app +- +idle in transaction +1h0m0s$`,
	} {
		if !regexp.MustCompile(want).MatchString(text.String()) {
			t.Errorf("no line like %s in\n%s", want, text.String())
		}
	}
}

// TestLookBehindALock: what only looks does not hang behind a session that has a table to itself, and names it.
func TestLookBehindALock(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	holder := db.Connect(t)
	for _, sql := range []string{
		`set application_name = 'rewriter'`, `begin`, `lock table outbox_event in access exclusive mode`,
	} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for verb, want := range map[string]int{"status": codeFailed, "lanes": codeFailed, "doctor": codeFindings} {
		code, text, stderr := command(t, settings(db), verb, "--timeout=1h")
		text += stderr
		if code != want || !strings.Contains(text, "rewriter") || !strings.Contains(text, "idle in transaction, in "+
			"its transaction since") || !strings.Contains(text, "access exclusive mode) holds an ACCESS EXCLUSIVE") {
			t.Errorf("%s: exit code %d: %s", verb, code, text)
		}
	}
}

// TestDoctorBehindALockOfKeys: the doctor names who holds a table that only its look at idempotency keys reads, and
// names a holder once.
func TestDoctorBehindALockOfKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Idempotency)
	holder := db.Connect(t)
	for _, sql := range []string{`begin`, `lock table idempotency_key in access exclusive mode`} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	look := func(tables string) {
		t.Helper()
		code, text, stderr := command(t, settings(db).with("RELAY_KAFKA_BROKERS", ""), "doctor", "--timeout=1h")
		if code != codeFindings || strings.Count(text, "holds an ACCESS EXCLUSIVE lock on "+tables) != 1 {
			t.Errorf("exit code %d: %s%s", code, text, stderr)
		}
	}
	look("idempotency_key")
	if _, err := holder.Exec(t.Context(), `lock table outbox_lane in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	look("idempotency_key, outbox_lane")
}

// TestPreparedBehindAPooler: the setting that a pooler in transaction mode wants is named by whoever meets it.
func TestPreparedBehindAPooler(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	pooled := "postgres://u@" + pgtest.NewPooler(t, db.URL) + "/d?sslmode=disable"
	env := settings(db, deadBroker).with("RELAY_DATABASE_URL", pooled)
	for _, verb := range []string{
		"status", "lanes", "run", "parked list", "topics pause --topic t --reason r", "audit", "find --text t",
	} {
		args := strings.Fields(verb)
		command(t, env, args...) // prepares its statements in the session that the next one gets
		if code, text, stderr := command(t, env, args...); code != codeFailed ||
			strings.Count(stderr, "add default_query_exec_mode=exec to the URL") != 1 {
			t.Errorf("%s: exit code %d: %s%s", verb, code, text, stderr)
		}
	}
	other := "postgres://u@" + pgtest.NewPooler(t, db.URL) + "/d?sslmode=disable"
	if _, err := opened(t, pgtest.Pool(t, other), "").Waits(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The tables are looked at before.
	if code, text, stderr := command(t, env.with("RELAY_DATABASE_URL", other), "run"); code != codeFailed ||
		strings.Count(stderr, "add default_query_exec_mode=exec to the URL") != 1 {
		t.Errorf("the comparison of numbers: exit code %d: %s%s", code, text, stderr)
	}
	exec := env.with("RELAY_DATABASE_URL", pooled+"&default_query_exec_mode=exec")
	if code, text, stderr := command(t, exec, "status"); code != codeOK {
		t.Errorf("with that setting: exit code %d: %s%s", code, text, stderr)
	}
}

// TestStatusOfConsumers: an inbox in the same database is shown, and an outbox without an inbox is no error.
func TestStatusOfConsumers(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	if code, text, stderr := command(t, settings(db), "status"); code != codeOK || strings.Contains(text, "CONSUMER") {
		t.Errorf("without an inbox: exit code %d: %s%s", code, text, stderr)
	}
	both := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	both.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14)`)
	both.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, updated_at,
				halted_at) values
		('ledger', 't', 0, 1, 1, now() - interval '1 hour', null), ('ledger', 't', 1, 1, 1, now() - interval '2 hours',
			now())`)
	code, text, stderr := command(t, settings(both), "status")
	if code != codeOK || !regexp.MustCompile(`(?m)^ledger +2 +1 +0 +0 +1h\d+m\d+s$`).MatchString(text) {
		t.Errorf("exit code %d: %s%s", code, text, stderr)
	}
	code, text, _ = command(t, settings(both), "status", "--json")
	var st struct {
		Lanes     []operator.LaneStatus
		Consumers []consumerLine
	}
	if err := json.Unmarshal([]byte(text), &st); err != nil || code != codeOK || len(st.Lanes) != 32 ||
		len(st.Consumers) != 1 || st.Consumers[0].Halted != 1 {
		t.Errorf("exit code %d, %v: %s", code, err, text)
	}
}

// TestSafe: only an existing slot may be unlimited.
func TestSafe(t *testing.T) {
	t.Parallel()
	left := int64(5 << 30)
	for want, s := range map[string]relay.WALStatus{
		"no limit": {Exists: true, State: "reserved"}, "-": {}, "5.0 GiB": {
			Exists: true, State: "extended",
			SafeBytes: &left,
		},
	} {
		if got := safe(&s); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// The schema as a flag, with a URL without search_path, as operators use them.
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema}
	if code, _, stderr := command(t, env, "migrate", "--check"); code != codeSchema ||
		!strings.Contains(stderr, "relay migrate") {
		t.Fatalf("before: exit code %d: %s", code, stderr)
	}
	for range 2 { // the second has no migration left
		if code, _, stderr := command(t, env, "migrate"); code != codeOK || !strings.Contains(stderr, "up to date") {
			t.Fatalf("migrate: exit code %d: %s", code, stderr)
		}
	}
	if code, _, stderr := command(t, env, "migrate", "--check"); code != codeOK {
		t.Errorf("after: exit code %d: %s", code, stderr)
	}
	if code, stdout, stderr := command(t, env, "migrate", "--print-pending"); code != codeOK || stdout != "" {
		t.Errorf("pending: exit code %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := command(t, env, "status"); code != codeOK {
		t.Errorf("status: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := command(t, env, "inbox", "maintain"); code != codeOK ||
		!strings.Contains(stderr, "maintained") {
		t.Errorf("maintain: exit code %d: %s", code, stderr)
	}
	if n := pgtest.One[int](t, db,
		`select count(*) from pg_inherits where inhparent = 'inbox_message'::regclass`); n == 0 {
		t.Error("maintain made no day")
	}
}

// TestPrint: psql with the output of --print does what migrate does; one set leaves the other out.
func TestPrint(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("needs psql")
	}
	db := pgtest.New(t)
	env := environment{"RELAY_SCHEMA": db.Schema}
	code, sql, stderr := command(t, env, "migrate", "--print", "--sets", "outbox")
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	cmd := exec.Command(psql, "-X", "-v", "ON_ERROR_STOP=1", "-1", db.AdminURL)
	cmd.Stdin = strings.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	env = env.with("RELAY_DATABASE_URL", db.AdminURL)
	if code, _, stderr := command(t, env, "migrate", "--check", "--sets=outbox"); code != codeOK {
		t.Errorf("outbox: exit code %d: %s", code, stderr)
	}
	if code, _, _ := command(t, env, "migrate", "--check"); code != codeSchema {
		t.Errorf("both sets: exit code %d", code)
	}
	if code, sql, _ := command(t, env, "migrate", "--print-pending"); code != codeOK ||
		!strings.Contains(sql, "20001_inbox") || strings.Contains(sql, "10001_outbox") {
		t.Errorf("pending, exit code %d:\n%s", code, sql)
	}
}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	env := environment{"RELAY_DATABASE_URL": pgtest.New(t).URL}
	for _, args := range [][]string{{"status"}, {"inbox", "maintain"}} {
		if code, _, stderr := command(t, env, args...); code != codeSchema ||
			!strings.Contains(stderr, "run `relay migrate") {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
}

// TestWrongSettings: each is refused with the remedy, before any connection.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	good := environment{
		"RELAY_DATABASE_URL": "postgres://u@127.0.0.1:1/db", "RELAY_KAFKA_BROKERS": deadBroker,
		"RELAY_LISTEN": "off",
	}
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  environment
		args string
		want string
	}{
		"no command":      {good, "", `expected one of "run", "migrate", "wal"`},
		"unknown command": {good, "start", "unexpected argument start"},
		"unknown flag":    {good, "run --leas=3s", "did you mean"},
		"no database":     {good.with("RELAY_DATABASE_URL", ""), "run", "RELAY_DATABASE_URL_FILE) is missing"},
		"not Postgres":    {good.with("RELAY_DATABASE_URL", "mysql://u@h/db"), "run", "begins with postgres://"},
		"bad port":        {good.with("RELAY_DATABASE_URL", "postgres://u@h:99999/db"), "run", "invalid port"},
		"bad TLS": {
			good.with("RELAY_DATABASE_URL", "postgres://u@h/db?sslmode=perhaps"), "run",
			"failed to configure TLS",
		},
		"password with /":   {good.with("RELAY_DATABASE_URL", "postgres://u:a/b@h/db"), "run", "percent-encode"},
		"empty secret file": {good.with("RELAY_DATABASE_URL", "", "RELAY_DATABASE_URL_FILE", file), "run", "is empty"},
		"no secret file": {
			good.with("RELAY_DATABASE_URL", "", "RELAY_DATABASE_URL_FILE", file+"s"), "run",
			"RELAY_DATABASE_URL_FILE: open ",
		},
		"no brokers":        {good.with("RELAY_KAFKA_BROKERS", ""), "run", "--kafka-brokers is missing"},
		"broker sans port":  {good.with("RELAY_KAFKA_BROKERS", "kafka"), "run", `write broker "kafka" as host:port`},
		"lease no duration": {good.with("RELAY_LEASE", "15"), "run", "RELAY_LEASE: expected duration"},
		"lease too short":   {good, "run --lease 10ms", "--lease is 10ms: at least 1s"},
		"lease zero":        {good, "run --lease 0s", "--lease: want a value above zero"},
		"pumps":             {good, "run --pumps 64", "relay: --pumps is 64: from 1 to 32"},
		"compression": {good.with("RELAY_COMPRESSION", "lz5"), "run", "RELAY_COMPRESSION: want one of none, " +
			"gzip, snappy, lz4, zstd"},
		"schema":           {good, `run --schema App`, "want 1 to 63 of a-z"},
		"listen":           {good, "run --listen 9187", `want host:port that is free, or "off"`},
		"log format":       {good, "run --log-format xml", `"text","json"`},
		"two prints":       {good, "migrate --print --check", "choose one of"},
		"roles sans print": {good, "migrate --roles", "--roles only prints: add --print"},
		"role prefix":      {good, "migrate --roles --print --role-prefix a-b", "want 1 to 41 of a-z"},
		"discard nothing":  {good, "parked discard --reason x", "name what is meant"},
		"release sans why": {good, "parked release --topic t --key k", "--reason is missing"},
		"not filled in":    {good, "parked release --topic t --key k --reason=...", `--reason="..." is where`},
		"release two":      {good, "parked release --topic t --key k --id 3 --reason x", "name what is meant"},
		"all of a key":     {good, "parked release --all --topic t --key k --reason x", "name what is meant"},
		"topic alone":      {good, "parked release --topic t --reason x", "name what is meant"},
		"edit nothing":     {good, "parked edit --id 3 --reason x", "nothing to change"},
		"edit two":         {good, "parked edit --id 3 --tombstone --payload-file x --reason x", "choose one of"},
		"show nothing":     {good, "parked show", "--id is missing"},
		"show an argument": {good, "parked show 28", "unexpected argument 28: relay parked show wants --id=...;"},
		"a URL, and a slip": {
			good, "run --database-url postgres://u:p@127.0.0.1:1/db --feed tabel",
			`--feed must be one of "table","wal" but got "tabel"`,
		},
		"SASL sans user": {good, "run --kafka-sasl plain", "wants --kafka-username and --kafka-password"},
		"unknown set":    {good, "migrate --print --sets=outbox,outbx", `no set "outbx"`},
		"days ahead":     {good, "inbox maintain --days-ahead 100", "--days-ahead is 100: want 1 to 60"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := command(t, c.env, strings.Fields(c.args)...)
			if code != codeUsage || !strings.Contains(stderr, c.want) || stdout != "" {
				t.Errorf("exit code %d, want %q in: %s%s", code, c.want, stderr, stdout)
			}
			if strings.Count(stderr, "\n") > 2 {
				t.Errorf("too many lines: %s", stderr)
			}
		})
	}
}

// TestMisspelledVariable: without an error, a misspelled variable would be ignored.
func TestMisspelledVariable(t *testing.T) {
	t.Setenv("RELAY_KAFKA_BROKER", "h:1")
	t.Setenv("RELAY_PORT_9187_TCP", "tcp://10.0.0.1:9187") // as Kubernetes sets it for a service named relay
	code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": "postgres://u@127.0.0.1:1/db"}, "status")
	if code != codeUsage || !strings.Contains(stderr,
		`RELAY_KAFKA_BROKER is no setting's variable, did you mean "RELAY_KAFKA_BROKERS"?`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestRefusedByPostgres: errors that do not end by waiting end the start.
func TestRefusedByPostgres(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/no_such_database"
	env := settings(db, deadBroker).with("RELAY_DATABASE_URL", u.String(), "RELAY_LOG_FORMAT", "text")
	for _, args := range [][]string{{"run"}, {"status"}, {"migrate"}, {"migrate", "--check"}, {"inbox", "maintain"}} {
		if code, _, stderr := command(t, env, args...); code != codeUsage ||
			!strings.Contains(stderr, "no such database: look at the database's URL (--database-url)") {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
}

// TestSecrets: no output has a password, whatever the error.
func TestSecrets(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	role := "r_" + db.Schema[len(db.Schema)-8:]
	db.Exec(t, `create role `+role+` login password '`+canary+`'`)
	at := func(change func(*url.URL)) string {
		u, err := url.Parse(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, canary)
		change(u)
		return u.String()
	}
	file := filepath.Join(t.TempDir(), "relay.yaml")
	for name, c := range map[string]struct {
		database string
		args     []string
		yaml     string
	}{
		"no grant":    {at(func(*url.URL) {}), []string{"status"}, ""},
		"no database": {at(func(u *url.URL) { u.Path = "/none" }), []string{"status"}, ""},
		"no such user": {
			at(func(u *url.URL) { u.User = url.UserPassword("nobody", canary) }),
			[]string{"status"},
			"",
		},
		"nothing there":    {at(func(u *url.URL) { u.Host = "127.0.0.1:1" }), []string{"status"}, ""},
		"bad host":         {at(func(u *url.URL) { u.Host = "no-such-host.invalid" }), []string{"status"}, ""},
		"bad parameter":    {at(func(u *url.URL) { u.RawQuery = "sslmode=none" }), []string{"run"}, ""},
		"bad pool":         {at(func(u *url.URL) { u.RawQuery = "pool_max_conns=" + canary }), []string{"run"}, ""},
		"not a URL":        {"postgres://u:" + canary + "/x@h/db", []string{"run"}, ""},
		"a port":           {"postgres://u:1@h:" + canary + "/db", []string{"run"}, ""},
		"another scheme":   {"http://u:" + canary + "@h/db", []string{"run"}, ""},
		"key and value":    {"host=h password=" + canary + " port=x", []string{"run"}, ""},
		"unquoted value":   {"host=h password=my " + canary, []string{"run"}, ""},
		"no scheme":        {canary, []string{"run"}, ""},
		"as an argument":   {"", []string{"run", "postgres://u:" + canary + "@h/db"}, ""},
		"as a wrong flag":  {"", []string{"run", "--database", "postgres://u:" + canary + "@h/db"}, ""},
		"as another value": {"", []string{"run", "--lease", "postgres://u:" + canary + "@h/db"}, ""},
		"after a value":    {"", []string{"run", "--lease=postgres://u:" + canary + "@h/db"}, ""},
		"help":             {at(func(*url.URL) {}), []string{"run", "--help"}, ""},
		"help of all":      {at(func(*url.URL) {}), []string{"--help"}, ""},
		"own password": {
			at(func(u *url.URL) { u.User, u.Host = url.User("nobody"), "127.0.0.1:1" }),
			[]string{"status", "--database-password", canary},
			"",
		},
		"own password, =":  {"", []string{"run", "--database-password=" + canary, "--lease=x"}, ""},
		"mistyped flag":    {"", []string{"run", "--kafka-pasword=" + canary}, ""},
		"mistyped flag, 2": {"", []string{"run", "--kafka-passwort", canary}, ""},
		"kafka: no SASL":   {at(func(*url.URL) {}), []string{"run"}, ""},
		"kafka: bad SASL":  {at(func(*url.URL) {}), []string{"run", "--kafka-sasl=x"}, ""},
		"kafka: bad TLS": {at(func(*url.URL) {}), []string{
			"run", "--kafka-sasl=plain", "--kafka-tls",
			"--kafka-ca-file=none",
		}, ""},
		"kafka: help":      {at(func(*url.URL) {}), []string{"run", "--help"}, ""},
		"doctor":           {at(func(*url.URL) {}), []string{"doctor"}, ""},
		"doctor, no Kafka": {at(func(*url.URL) {}), []string{"doctor", "--kafka-brokers", deadBroker}, ""},
		"doctor, outage":   {at(func(u *url.URL) { u.Host = "127.0.0.1:1" }), []string{"doctor", "--json"}, ""},
		"kafka: doctor":    {at(func(*url.URL) {}), []string{"doctor", "--kafka-sasl=plain"}, ""},
		"yaml, password":   {"", []string{"run"}, "kafka-password: [" + canary + "]\nkafka-password: x"},
		"yaml, bad line":   {"", []string{"run"}, "database-url: *" + canary},
		"yaml, no key":     {"", []string{"run"}, "postgres://u:" + canary + "@h/db"},
		"yaml, bad key":    {"", []string{"run"}, "postgres://u:" + canary + "@h/db: x"},
		"yaml, nested":     {"", []string{"run"}, "database-url: {password: " + canary + "}"},
	} {
		t.Run(name, func(t *testing.T) {
			env := environment{
				"RELAY_DATABASE_URL": c.database, "RELAY_KAFKA_BROKERS": deadBroker,
				"RELAY_LISTEN": "off", "RELAY_LOG_LEVEL": "debug",
			}
			if c.yaml != "" {
				if err := os.WriteFile(file, []byte(c.yaml), 0o600); err != nil {
					t.Fatal(err)
				}
				env["RELAY_CONFIG"] = file
			}
			if strings.HasPrefix(name, "kafka: ") {
				env["RELAY_KAFKA_USERNAME"], env["RELAY_KAFKA_PASSWORD"] = "u", canary
			}
			code, stdout, stderr := command(t, env, c.args...)
			if help := strings.Contains(name, "help"); (code == codeOK) != help || stdout+stderr == "" {
				t.Errorf("exit code %d: %s", code, stderr)
			}
			if strings.Contains(stdout+stderr, canary) {
				t.Errorf("the password is in the output:\n%s%s", stdout, stderr)
			}
		})
	}
	t.Run("run", func(t *testing.T) {
		relay := inProcess(t, settings(db, deadBroker).with("RELAY_DATABASE_URL",
			at(func(u *url.URL) { u.Host = "127.0.0.1:1" }), "RELAY_LOG_LEVEL", "debug", "RELAY_PPROF", "true"))
		pgtest.Await(t, "the relay waits", func() (bool, error) {
			return strings.Contains(relay.output(), "does not answer"),
				nil
		})
		pages := relay.output()
		for _, page := range []string{"/readyz", "/healthz/moving", "/metrics", "/debug/pprof/cmdline"} {
			_, body, err := relay.get(page)
			if err != nil {
				t.Fatal(err)
			}
			pages += body
		}
		if strings.Contains(pages, canary) {
			t.Errorf("the password is in the output:\n%s", pages)
		}
	})
	db.Exec(t, "drop role "+role)
}

// TestPrecedence, end to end: the schema decides which tables --check sees.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const elsewhere = "postgres://u@127.0.0.1:1/db"
	secret := write("url", db.URL+"\n")
	yaml := write("relay.yaml", "database-url: "+elsewhere+"\nsets: [outbox]\nkafka-brokers: [a:1, b:2]\n")
	onlyYAML := write("only.yaml", "database-url: '"+db.URL+"'\nsets: outbox\n")
	for name, c := range map[string]struct {
		env  environment
		args []string
		want int
	}{
		"yaml":           {environment{"RELAY_CONFIG": onlyYAML}, nil, codeOK},
		"yaml by flag":   {environment{"RELAY_CONFIG": yaml}, []string{"--config", onlyYAML}, codeOK},
		"file over yaml": {environment{"RELAY_CONFIG": yaml, "RELAY_DATABASE_URL_FILE": secret}, nil, codeOK},
		"variable over file": {environment{
			"RELAY_CONFIG": yaml, "RELAY_DATABASE_URL_FILE": secret,
			"RELAY_DATABASE_URL": elsewhere,
		}, nil, codeFailed},
		"flag over variable": {
			environment{"RELAY_CONFIG": yaml, "RELAY_DATABASE_URL": elsewhere},
			[]string{"--database-url", db.URL},
			codeOK,
		},
		"empty is not set": {environment{
			"RELAY_CONFIG": yaml, "RELAY_DATABASE_URL": "",
			"RELAY_DATABASE_URL_FILE": secret,
		}, nil, codeOK},
		"a list by variable":    {environment{"RELAY_CONFIG": onlyYAML, "RELAY_SETS": "outbox,inbox"}, nil, codeSchema},
		"yaml of another place": {environment{"RELAY_CONFIG": filepath.Join(dir, "none")}, nil, codeUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if code, _, stderr := command(t, c.env,
				append([]string{"migrate", "--check"}, c.args...)...); code != c.want {
				t.Errorf("exit code %d, want %d: %s", code, c.want, stderr)
			}
		})
	}
}

// TestHelp: the help of a command lists its settings with their variables, and no line is too long to read.
func TestHelp(t *testing.T) {
	t.Parallel()
	code, help, _ := command(t, environment{}, "run", "--help")
	if code != codeOK {
		t.Fatalf("exit code %d", code)
	}
	for _, want := range []string{
		"--database-url=VALUE .*", `required;\s+\$RELAY_DATABASE_URL\[_FILE\]\)`, `--lease=15s .*`, `\(\$RELAY_LEASE\)`,
		`\(default:\s+127\.0\.0\.0/8,::1/128;\s+\$RELAY_UI_PROXY_FROM\)`, "\nTopics of relay help: ",
	} {
		if !regexp.MustCompile(want).MatchString(help) {
			t.Errorf("no %s in\n%s", want, help)
		}
	}
	tree := model(t)
	if n := len(tree.Leaves(true)); n < 50 {
		t.Errorf("%d commands", n)
	}
	_ = kong.Visit(tree, func(v kong.Visitable, next kong.Next) error {
		node, ok := v.(*kong.Node)
		if !ok || node.Hidden {
			return nil
		}
		if len(node.Children) == 0 && node.ClosestGroup() == nil {
			t.Errorf("%s is in no group of commands", node.FullPath())
		}
		args := append(strings.Fields(node.FullPath())[1:], "--help")
		code, help, stderr := command(t, environment{}, args...)
		if code != codeOK || !strings.HasPrefix(help, "Usage: relay") {
			t.Errorf("%v: exit code %d: %s%s", args, code, help, stderr)
		}
		for line := range strings.Lines(help) {
			if utf8.RuneCountInString(line) > 121 {
				t.Errorf("%v: a line is longer than 120 columns: %s", args, line)
			}
		}
		return next(nil)
	})
}

// model is the tree of commands.
func model(t *testing.T) *kong.Node {
	t.Helper()
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: environment{}.get}
	parsed, err := line.Parse(&cli{}, []string{"status"}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Model.Node
}

// lineParser parses command lines one after the other, without a tree of commands for each. Its errors are kong's own.
func lineParser(t *testing.T, env environment) func(args []string) error {
	t.Helper()
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get, List: outboxList}
	parsed, err := line.Parse(&cli{}, []string{"status"}, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	printed := false // help
	parsed.Kong.Exit = func(int) { printed = true }
	return func(args []string) error {
		printed = false
		_ = kong.Visit(parsed.Model.Node, func(v kong.Visitable, next kong.Next) error {
			if value, ok := v.(*kong.Value); ok {
				value.Set = false // as Parse expects it
			} else if flag, ok := v.(*kong.Flag); ok {
				flag.Set = false
			}
			return next(nil)
		})
		if _, err := parsed.Kong.Parse(args); !printed {
			return err
		}
		return nil
	}
}

// ofVerbs are the flags of commands that act, look or set up which say how and where, and not what is to be done.
var ofVerbs = []string{
	"consumer", "days-ahead", "json", "lock-timeout", "long-transaction", "operator", "role-prefix", "roles", "sets",
	"timeout", "topics",
}

// TestOnlySettingsHaveVariables: what a command is to do, and what confirms it, is accepted on the command line only. A
// variable of the shell's, or a line of a file, would arm every later command. A new flag needs a decision: the tag
// line, or a place among the settings.
func TestOnlySettingsHaveVariables(t *testing.T) {
	t.Parallel()
	var c cli
	tree, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	lasting := map[string]bool{}
	for _, n := range append([]*kong.Node{tree.Model.Node}, tree.Model.Children...) {
		if n.Name == "run" || n.Name == "ui" || n == tree.Model.Node {
			for _, f := range n.Flags {
				lasting[f.Name] = true
			}
		}
	}
	lines, flags := 0, 0
	_ = kong.Visit(tree.Model.Node, func(v kong.Visitable, next kong.Next) error {
		f, ok := v.(*kong.Flag)
		if !ok {
			return next(nil)
		}
		flags++
		switch line := f.Tag.Has("line"); {
		case line && lasting[f.Name]:
			t.Errorf("--%s is a setting of relay run or relay ui, and accepted on the command line only", f.Name)
		case line:
			lines++
		case !lasting[f.Name] && !slices.Contains(ofVerbs, f.Name):
			t.Errorf("--%s: is it a setting, or what one run is to do (tag line)?", f.Name)
		}
		return next(nil)
	})
	if lines < 50 {
		t.Errorf("%d of %d flags are accepted on the command line only", lines, flags)
	}
}

// What would arm a command is refused, and named, in a variable and in the file.
func TestVariablesThatActAreRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "relay.yml")
	if err := os.WriteFile(file, []byte("all: true\nreason: nightly\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"inbox", "parked", "discard", "--consumer=warehouse", "--reason=one event, I thought"}
	for name, env := range map[string]environment{
		"a variable": {"RELAY_ALL": "true", "RELAY_DATABASE_URL": "postgres://localhost/none"},
		"the file":   {"RELAY_CONFIG": file, "RELAY_DATABASE_URL": "postgres://localhost/none"},
	} {
		code, _, stderr := command(t, env, args...)
		if code != codeUsage || !strings.Contains(stderr, "--all is accepted on the command line only") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
}
