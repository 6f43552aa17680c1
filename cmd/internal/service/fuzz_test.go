package service_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/canary"
)

// FuzzSettings: whatever stands in a configuration file, a variable, a secret's file, a database's URL or an argument
// is taken whole or refused; nothing panics, and no refusal repeats a password.
func FuzzSettings(f *testing.F) {
	for _, seed := range []struct {
		way  uint8
		a, b string
	}{
		{0, "wait: 2s", ""},
		{0, "names: [a, b]", ""},
		{0, "a: &x 1\nb: *x", ""},
		{0, "? [a]\n: b", ""},
		{0, "<<: {wait: 1s}", ""},
		{0, "wait: !!binary aGk=", ""},
		{0, "---\n...\n", ""},
		{0, "kind: c", ""},
		{1, "wait: x", ": ["},
		{2, "1h", "a,b"},
		{2, "x", "\x00"},
		{3, "5", "c"},
		{4, "wait", `"@h`},
		{5, "wait", `"@h`},
		{5, "kind", "\n@h"},
		{5, "ports", ",x@h"},
		{5, "item-count", "\\@h"},
		{6, "--wait", `"`},
		{7, "--wait=x", ""},
		{8, "", `"`},
		{9, "postgres://u:", "@h:x/db"},
		{9, "host=h password='", "' port=x"},
		{10, "", "%zz@h/db"},
		{11, "", "sslmode=none"},
		{11, "", "pool_max_conns=x"},
		{12, "", " port=x"},
		{13, "plain", "\u00a0"},
		{13, "scram-sha-256", "\u0007"},
	} {
		f.Add(seed.way, seed.a, seed.b)
	}
	const password = "canary-d09e"
	dir := f.TempDir() // each process has its own, and runs one input at a time
	file := func(t *testing.T, content string) string {
		path := filepath.Join(dir, "f")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	f.Fuzz(func(t *testing.T, way uint8, a, b string) {
		parse := func(env map[string]string, args ...string) {
			var p program
			line := service.CommandLine{Name: "thing", Prefix: "THING_", Env: func(name string) string {
				return env[name]
			}}
			_, err := line.Parse(&p, args, io.Discard, io.Discard)
			if err == nil && p.Kind != "a" && p.Kind != "b" {
				t.Errorf("%q, %q: accepted with the kind %q", env, args, p.Kind)
			}
			silent(t, err, password)
		}
		url := func(text string) {
			_, err := pgconf.PoolConfig("--db", text)
			silent(t, err, password)
		}
		switch way % 14 { // one at a time, or the fuzzer learns slowly
		case 0:
			parse(nil, "--config", file(t, a))
		case 1:
			parse(nil, "--config", file(t, "token: "+password+b+"\n"+a))
		case 2:
			parse(map[string]string{"THING_WAIT": a, "THING_NAMES": b, "THING_TOKEN": password + b})
		case 3:
			parse(map[string]string{"THING_ITEM_COUNT": a, "THING_KIND": b, "THING_TOKEN_FILE": file(t, password+a)})
		// What looks like a URL, or stands behind a flag that looks like a password's, is hidden wherever it stands.
		case 4:
			parse(nil, "--"+a, "postgres://u:"+password+b)
		case 5:
			parse(nil, "--"+a+"=postgres://u:"+password+b)
		case 6:
			parse(nil, "postgres://u:"+password+b, a)
		case 7:
			parse(nil, "--kafka-pasword="+password+b, a)
		case 8:
			parse(nil, "--kafka-passwort", password+b, a)
		case 9:
			url(a + password + b)
		case 10:
			url("postgres://u:" + password + b)
		case 11:
			url("postgres://u:" + password + "@h/db?" + b)
		case 12:
			url("host=h password=" + password + b)
		case 13:
			_, err := kafkaconn.Config{
				Brokers: strings.Split(b, ","), SASL: a, Username: b, Password: secret.Of(password + b),
				TLS: len(a)%2 == 0, ServerName: b,
			}.New(nil)
			silent(t, err, password)
		}
	})
}

func silent(t *testing.T, err error, password string) {
	t.Helper()
	if err != nil && len(canary.Leaks(err.Error(), password)) > 0 {
		t.Errorf("the error repeats the password: %v", err)
	}
}
