package pgconf_test

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/usage"
)

func TestPoolConfig(t *testing.T) {
	t.Parallel()
	if _, err := pgconf.PoolConfig("--db", "postgres://u:p@h:1/d"); err != nil {
		t.Error(err)
	}
	if _, err := pgconf.PoolConfig("--db", "host=h DateStyle=ISO app.tenant=a"); err != nil {
		t.Error(err)
	}
	for url, want := range map[string]string{
		"":                                   "--db is missing",
		"mysql://u:secret@h/d":               "begins with postgres://",
		"postgres://u:sec/ret@h/d":           "percent-encode",
		"postgres://u:secret@h:0/d":          "invalid port",
		"postgres://u@h/d?sslmode=secret":    "failed to configure TLS",
		"host=h target_session_attrs=secret": "unknown target_session_attrs value",
		"secret":                             "keyword/value",
		`"postgres://u:secret@h/d"`:          "quotation mark",
		`'postgres://u@h/d?sslmode=secret'`:  "quotation mark",
		`"postgres://u@h/d?sslmode=secret"`:  "quotation mark",
		"\ufeffpostgres://u@h/d?a=secret":    "byte order mark",
		"\u200bpostgres://u@h/d?a=secret":    "a setting whose name is none",
	} {
		_, err := pgconf.PoolConfig("--db", url)
		var usage *usage.Error
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &usage) {
			t.Errorf("%s: %v, want %s", url, err, want)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the error repeats it: %v", url, err)
		}
	}
}

// TestDatabaseIsFollowed: user, password and certificates are those of the moment of a connection; the place is not.
func TestDatabaseIsFollowed(t *testing.T) {
	t.Parallel()
	url, password := write(t, "postgres://first:one@h:1/d"), write(t, "two")
	for _, own := range []bool{false, true} {
		d := pgconf.Database{URL: secret.InFile(url)}
		if own {
			d.Password = secret.InFile(password)
		}
		cfg, err := d.PoolConfig("--db")
		if err != nil {
			t.Fatal(err)
		}
		connect := func(user, password string) {
			t.Helper()
			conn := cfg.ConnConfig.Copy()
			if err := cfg.BeforeConnect(t.Context(), conn); err != nil || conn.User != user ||
				conn.Password != password {
				t.Errorf("%s %s, %v; want %s %s", conn.User, conn.Password, err, user, password)
			}
		}
		overwrite := func(path, content string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		overwrite(password, "two")
		if connect("first", map[bool]string{false: "one", true: "two"}[own]); !own {
			overwrite(url, "postgres://second:three@h:1/d")
			connect("second", "three")
		} else {
			overwrite(password, "four\n")
			connect("first", "four")
			overwrite(password, "")
			if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); !errors.Is(err, secret.ErrEmptyFile) {
				t.Errorf("a file that is being replaced: %v", err)
			}
			overwrite(password, "four")
		}
		overwrite(url, "postgres://first:one@elsewhere:1/d")
		if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); err == nil ||
			!strings.Contains(err.Error(), "another server or database") {
			t.Errorf("another host: %v", err)
		}
		overwrite(url, "postgres://first:one@h:1/d")
	}
}

// TestDisableIsRefused: sslmode=disable to another machine needs somebody who says so, also when it comes by a
// rotation.
func TestDisableIsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:canary@db:1/d?sslmode=disable":                    "to db,",
		"postgres://u:canary@10.0.0.1:1/d?sslmode=disable":              "to 10.0.0.1,",
		"postgres://u:canary@localhost:1,other:1/d?sslmode=disable":     "to other,",
		"postgres://u:canary@localhost:1,127.0.0.1:1/d?sslmode=disable": "",
		"host=/run/postgresql user=u sslmode=disable":                   "",
		"postgres://u:canary@db:1/d":                                    "", // prefer: run warns
		"postgres://u:canary@db:1/d?sslmode=allow":                      "",
		"postgres://u:canary@db:1/d?sslmode=require":                    "",
		"postgres://u:canary@db:1/d?sslmode=verify-full":                "",
	} {
		_, err := pgconf.Database{URL: secret.Of(url)}.PoolConfig("--db")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "sslmode=verify-full")) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("the error repeats the password: %v", err)
		}
		if _, err := (pgconf.Database{URL: secret.Of(url), AllowPlain: true}).PoolConfig("--db"); err != nil {
			t.Errorf("%s, allowed: %v", url, err)
		}
	}
	path := write(t, "postgres://u:canary@db:1/d")
	cfg, err := pgconf.Database{URL: secret.InFile(path)}.PoolConfig("--db")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("postgres://u:canary@db:1/d?sslmode=disable"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); err == nil ||
		!strings.Contains(err.Error(), "sslmode=disable") {
		t.Errorf("a rotation to the clear: %v", err)
	}
}

// TestCertificatesAreFollowed: a CA file that is replaced counts from the next connection on.
func TestCertificatesAreFollowed(t *testing.T) {
	t.Parallel()
	path := kafkatest.NewAuthority(t).File(t)
	cfg, err := pgconf.Database{URL: secret.Of("postgres://u@h/d?sslmode=verify-full&sslrootcert=" + path)}.PoolConfig(
		"--db")
	if err != nil {
		t.Fatal(err)
	}
	roots := func() *x509.CertPool {
		t.Helper()
		conn := cfg.ConnConfig.Copy()
		if err := cfg.BeforeConnect(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		return conn.TLSConfig.RootCAs
	}
	first := roots()
	if !first.Equal(roots()) {
		t.Error("the same file, other certificates")
	}
	if err := os.WriteFile(path, kafkatest.NewAuthority(t).PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if first.Equal(roots()) {
		t.Error("the old certificates")
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
