package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

const (
	manyDatabases, manySchemas = 20, 50
	manyWindow                 = time.Minute
	nameManyIdle               = "999 idle outboxes"
	nameBusyAlone              = "busy outbox alone"
	nameBusyBeside             = "busy outbox beside 999 idle ones"
)

// manyCase: `relay run` with a thousand outboxes in twenty databases. What it costs while nothing happens, and what a
// busy one of them loses by the others.
func manyCase(ctx context.Context, s *stack, o options, rep *report) error {
	m := many{stack: s, events: o.events, rep: rep, window: manyWindow}
	databases, schemas := manyDatabases, manySchemas
	if o.quick {
		databases, schemas, m.window = 2, 5, time.Second
	}
	rep.note("many", fmt.Sprintf("relay run with %d outboxes in %d databases of one server. The events of a busy "+
		"outbox are committed together, and drained by a relay that is awake", databases*schemas, databases))
	began := time.Now()
	idle, err := s.manyOutboxes(ctx, databases, schemas)
	if err != nil {
		return err
	}
	rep.printf("  many: the outboxes were made in %v", time.Since(began).Round(time.Second))
	m.binary = filepath.Join(s.dir, "relay")
	build := exec.CommandContext(ctx, "go", "build", "-o", m.binary, "../cmd/relay")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	var drop func()
	if m.topic, drop, err = s.topic(ctx, 0); err != nil {
		return err
	}
	defer drop()
	busy := manyEntry("busy", s.pg.URL(), "public")
	for turn := range o.repeats + 1 {
		if err := m.once(ctx, turn, nameBusyAlone, busy); err != nil {
			return err
		}
		if err := m.once(ctx, turn, nameBusyBeside, busy+idle); err != nil {
			return err
		}
	}
	rep.ratio("many", nameBusyBeside, nameBusyAlone, 0.9)
	rep.atMost("many", nameManyIdle+", of a core", 1, m.cores)
	rep.atMost("many", nameManyIdle+", MiB resident", 500, m.resident)
	return nil
}

type many struct {
	*stack
	binary, topic   string
	events          int
	window          time.Duration
	rep             *report
	cores, resident []float64
}

func manyEntry(name, databaseURL, schema string) string {
	return fmt.Sprintf("  - {name: %s, database-url: %q, schema: %s}\n", name, databaseURL, schema)
}

// manyOutboxes makes all but one of the outboxes, and returns their entries. The first database is the template of the
// others.
func (s *stack) manyOutboxes(ctx context.Context, databases, schemas int) (list string, err error) {
	for i := range databases {
		u, err := url.Parse(s.pg.URL())
		if err != nil {
			return "", err
		}
		u.Path = "/many" + strconv.Itoa(i)
		create := "create database many" + strconv.Itoa(i)
		if i > 0 {
			create += " template many0 strategy file_copy" // a log of 20 databases would still be written out later
		}
		if err := s.exec(ctx, create); err != nil {
			return "", err
		}
		if i == 0 {
			if err := migrateMany(ctx, u.String(), schemas); err != nil {
				return "", err
			}
		}
		for j := range schemas {
			if i+j > 0 {
				list += manyEntry(fmt.Sprintf("many%d-%d", i, j), u.String(), manySchema(j))
			}
		}
	}
	return list, nil
}

func manySchema(i int) string { return fmt.Sprintf("tenant_%02d", i) }

func migrateMany(ctx context.Context, databaseURL string, schemas int) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for i := range schemas {
		var sql bytes.Buffer
		options := migrations.Options{Schema: manySchema(i), Sets: []migrations.Set{migrations.Outbox}}
		err := migrations.Print(&sql, options)
		if err == nil {
			_, err = conn.PgConn().Exec(ctx, sql.String()).ReadAll()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// once runs a relay of the list, and measures what it costs before the busy outbox has anything, and how long that one
// takes.
func (m *many) once(ctx context.Context, turn int, name, list string) error {
	file := filepath.Join(m.dir, "many.yaml")
	if err := os.WriteFile(file, []byte("outboxes:\n"+list), 0o600); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	_ = l.Close()
	if err := m.exec(ctx, queryEmptyOutbox, queryVacuumOutbox, queryCheckpoint); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, m.binary, "run", "--config", file, "--listen", address, "--kafka-brokers",
		strings.Join(m.brokers, ","), "--memory-limit=500", "--log-level=warn")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	n := strings.Count(list, "name:")
	if err := awaitReady(ctx, "http://"+address); err != nil {
		return err
	}
	time.Sleep(5*time.Second + time.Duration(n)*15*time.Millisecond) // all were checked and looked at
	if n > 1 && len(m.cores) == 0 {
		if err := m.idle(ctx, cmd.Process.Pid); err != nil {
			return err
		}
	}
	seconds, err := m.drain(ctx)
	if err != nil {
		return err
	}
	m.rep.add(figure{
		Case: "many", Name: name, Turn: turn, Events: m.events, Seconds: seconds, Rate: float64(m.events) / seconds,
		PeakKiB: peakOf(strconv.Itoa(cmd.Process.Pid)),
	})
	return nil
}

// drain is how long the events of one transaction take from its commit on.
func (m *many) drain(ctx context.Context) (seconds float64, err error) {
	app := outbox.Appender{MaxPayload: -1}
	payload := payloads(distinct)
	err = pgx.BeginFunc(ctx, m.db, func(tx pgx.Tx) error {
		for n := m.events; n > 0; n -= 10_000 {
			if err := app.Append(ctx, tx, events(m.topic, min(n, 10_000), payload)...); err != nil {
				return err
			}
		}
		return nil
	})
	began := time.Now()
	for left := true; left && err == nil; {
		time.Sleep(20 * time.Millisecond)
		err = m.db.QueryRow(ctx, queryAnyLeft).Scan(&left)
	}
	return time.Since(began).Seconds(), err
}

func awaitReady(ctx context.Context, base string) error {
	client := http.Client{Timeout: 5 * time.Second}
	for range 300 {
		if err := ctx.Err(); err != nil {
			return err
		}
		res, err := client.Get(base + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("the relay is not ready after 30 s")
}

// idle measures what a process costs in which nothing happens.
func (m *many) idle(ctx context.Context, pid int) error {
	var before, after, conns int64
	if err := m.db.QueryRow(ctx, queryTransactions).Scan(&before, &conns); err != nil {
		return err
	}
	cpu, _ := cpuOf(pid)
	servers := serverCPU()
	time.Sleep(m.window)
	used, _ := cpuOf(pid)
	window, postgres := m.window.Seconds(), serverCPU().minus(servers).postgres
	if err := m.db.QueryRow(ctx, queryTransactions).Scan(&after, &conns); err != nil {
		return err
	}
	m.cores = append(m.cores, (used-cpu)/window)
	m.resident = append(m.resident, float64(peakOf(strconv.Itoa(pid)))/1024)
	m.rep.printf("  many, %s for %v: %.3f of a core, %.0f MiB resident at most, %d connections; Postgres: %.3f of a "+
		"core, %.0f transactions/s", nameManyIdle, m.window, m.cores[0], m.resident[0], conns, postgres/window,
		float64(after-before)/window)
	return nil
}
