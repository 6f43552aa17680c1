package doctor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestFullDisk: a role that only reads finds that the tables' disk is full, wherever temporary files go by default, and
// that it has room again. A limit of temporary files is no full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	disk := filepath.Join(server.Dir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", disk).
		CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	account, err := child.Unprivileged()
	if err == nil {
		err = account.Own(disk)
	}
	if err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	execAll(t, admin, `create tablespace small location '`+disk+`'`, `create database shop tablespace small`,
		`create role reader login`, `grant create on tablespace pg_default to reader`,
		`alter role reader set temp_tablespaces = 'pg_default'`,
		`alter role reader set default_transaction_read_only = on`)
	shop := strings.Replace(server.URL(), "/postgres?", "/shop?", 1)
	writer, err := pgx.Connect(t.Context(), shop)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close(context.WithoutCancel(t.Context())) }()
	pool, err := pgxpool.New(t.Context(), strings.Replace(shop, "postgres@", "reader@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	want := func(severity Severity, words string) {
		t.Helper()
		var f findings
		f.disk(t.Context(), pool)
		expect(t, f.list, "disk", severity, words)
	}
	want(OK, "takes a megabyte")

	room := filepath.Join(disk, "room")
	if err := os.WriteFile(room, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	execAll(t, writer, `create table event (n int, text text)`)
	const write = `insert into event select n, repeat('x', 2000) from generate_series(1, 2000) n`
	var full error
	for full == nil {
		_, full = writer.Exec(t.Context(), write)
	}
	if !pgerr.Is(full, pgerr.DiskFull) {
		t.Fatal(full)
	}
	rest, err := os.Create(filepath.Join(disk, "rest"))
	for some := make([]byte, 4096); err == nil; {
		_, err = rest.Write(some)
	}
	_ = rest.Close()
	want(Fail, "Postgres is full: ERROR: could not write to file")
	if err := os.Remove(room); err != nil {
		t.Fatal(err)
	}
	want(OK, "takes a megabyte")

	execAll(t, admin, `alter role reader set temp_file_limit = '64kB'`)
	pool.Reset()
	want(Skip, "53400")
}
