package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// EnvRequireBouncer set to "1" fails the tests that need PgBouncer if it is missing. By default they are skipped.
const EnvRequireBouncer = "EFFECTONCE_REQUIRE_PGBOUNCER"

// NewBouncer starts a PgBouncer in front of the server of rawURL and returns the URL of the same database through it.
// mode is transaction or session. The end of the test stops it.
func NewBouncer(t testing.TB, rawURL, mode string) string {
	t.Helper()
	if _, err := exec.LookPath("pgbouncer"); err != nil {
		if os.Getenv(EnvRequireBouncer) == "1" {
			t.Fatalf("pgtest: %v, and %s=1", err, EnvRequireBouncer)
		}
		t.Skip("pgbouncer is missing: install Debian's package")
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatalf("pgtest: parse %s: %v", rawURL, err)
	}
	q := u.Query()
	q.Del("options") // PgBouncer refuses it; the database sets the search_path
	u.RawQuery = q.Encode()
	dir, remove, err := child.TempDir("bouncer")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(remove)
	var process *child.Process
	server := u.Host
	err = child.OnFreePort(func(port int) error {
		u.Host = fmt.Sprintf("127.0.0.1:%d", port)
		process, err = startBouncer(dir, server, mode, u)
		return err
	})
	if err != nil {
		t.Fatalf("pgtest: start pgbouncer: %v", err)
	}
	t.Cleanup(func() { process.Stop(syscall.SIGTERM, 10*time.Second) })
	return u.String()
}

func startBouncer(dir, server, mode string, u *url.URL) (*child.Process, error) {
	to, err := url.Parse("postgres://" + server)
	if err != nil {
		return nil, err
	}
	account, err := child.Unprivileged() // PgBouncer refuses root too
	if err != nil {
		return nil, err
	}
	// While the server is away, clients get an error after seconds, not after the default of minutes.
	settings := fmt.Sprintf(`[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = 50
max_client_conn = 500
server_login_retry = 1
query_wait_timeout = 10
ignore_startup_parameters = extra_float_digits
`, to.Hostname(), to.Port(), u.Port(), mode)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	if err := account.Own(dir, file); err != nil {
		return nil, err
	}
	cmd := exec.Command("pgbouncer", file)
	cmd.Dir = dir
	account.Run(cmd)
	p, err := child.Start(cmd, filepath.Join(dir, "log"), syscall.SIGTERM)
	if err != nil {
		return nil, err
	}
	return p, p.Await(30*time.Second, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, u.String())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}
