package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/loopback"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/ui"
)

// pageFlags are the settings of the pages: those of relay ui, and those of relay run with the prefix "ui-".
type pageFlags struct {
	Listen      string   `default:"127.0.0.1:9188" help:"Address of the pages. Beyond this machine it wants users or a proxy header."`
	Prefix      string   `placeholder:"PATH" help:"Path of the pages, behind a proxy that passes it on."`
	Users       string   `placeholder:"PATH" help:"File with a line for each user, name:bcrypt-hash:level, where the level is view, reveal or operate, and perhaps :topics. Read anew when it changes."`
	ProxyHeader string   `placeholder:"NAME" help:"Header in which a proxy that logs people in names them."`
	ProxyFrom   []string `default:"127.0.0.0/8,::1/128" placeholder:"CIDR" help:"Networks from which that proxy connects. The header is ignored from elsewhere."`
	ProxyLevel  string   `default:"view" enum:"view,reveal,operate" help:"Level of users whom the proxy names and who are not in the file of users."`
	TraceURL    string   `name:"trace-url" placeholder:"URL" help:"Address of a trace, with {trace_id} in it, to open the one that an event was appended in."`
}

// pages are served at one address, over connections of their own.
type pages struct {
	log        *slog.Logger
	flags      string // their prefix
	cfg        ui.Config
	listener   net.Listener
	closeKafka func()
	users      string // the file of users; empty: none
	sleeps     bool   // the outboxes may sleep: they are read only while a page is open

	current atomic.Pointer[ui.Handler] // nil: no outbox is known yet
	shown   []namedOutbox
	end     func() // closes current; nil: there is none
}

// open listens, and connects to no server. conn may be nil; prefix begins the names of the flags.
func (c pageFlags) open(p *program, prefix string, conn *kafkaconn.Conn) (*pages, error) {
	authorize, err := c.door(p, prefix)
	if err != nil {
		return nil, err
	}
	g := &pages{
		log: p.log, flags: "--" + prefix, closeKafka: func() {}, users: c.Users,
		cfg: ui.Config{Authorize: authorize, Prefix: c.Prefix, TraceURL: c.TraceURL},
	}
	if g.listener, err = process.Listen(c.Listen); err != nil {
		return nil, &service.UsageError{Err: err}
	}
	if conn != nil {
		g.cfg.Kafka, g.closeKafka = conn.Client(kafkaTimeout)
	}
	p.log.Info("pages", "url", "http://"+g.listener.Addr().String()+strings.TrimSuffix(c.Prefix, "/")+"/")
	return g, nil
}

// ServeHTTP serves the current pages.
func (g *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := g.current.Load(); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	http.Error(w, errNoOutbox.Error(), http.StatusServiceUnavailable)
}

// serve serves until ctx ends. A nil pages serves nothing.
func (g *pages) serve(ctx context.Context) error {
	if g == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("/", g)
	health := process.Health{Ready: g.ready}.Handler() // without a login
	mux.Handle("GET /healthz", health)
	mux.Handle("GET /readyz", health)
	return process.Serve(ctx, g.listener, mux)
}

// ready tells whether people can look at pages. They show databases that are away, too.
func (g *pages) ready(context.Context) error {
	if g.current.Load() == nil {
		return errNoOutbox
	}
	if g.users != "" {
		if _, err := readUsers(g.users); err != nil {
			return errors.New("the file of users cannot be read: see it on the server")
		}
	}
	return nil
}

var errNoOutbox = errors.New("no outbox is known yet")

// close ends everything that show and open have started.
func (g *pages) close() {
	if g == nil {
		return
	}
	if g.end != nil {
		g.end()
	}
	_ = g.listener.Close()
	g.closeKafka()
}

// show sets the database of d, or the outboxes of list, and takes samples of them until ctx ends. For an unchanged list
// it does nothing: a new one starts the plots over.
func (g *pages) show(ctx context.Context, d database, list []namedOutbox) error {
	same := func(a, b namedOutbox) bool { return a.name == b.name && a.same(b) }
	if g == nil || g.end != nil && slices.EqualFunc(g.shown, list, same) {
		return nil
	}
	databases, closeAll := g.databases(d, list)
	h, err := ui.New(databases, g.cfg)
	g.current.Store(h)
	if g.end != nil {
		g.end()
	}
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		if err == nil && !g.sleeps {
			_ = h.Run(sampling)
		}
	}()
	g.shown, g.end = list, func() { stop(); <-sampled; closeAll() }
	if err != nil {
		return service.Usage("%s", strings.NewReplacer("ui: ", "", "Config.Prefix is", g.flags+"prefix is",
			"Config.TraceURL is", g.flags+"trace-url is").Replace(err.Error()))
	}
	return nil
}

// databases opens the databases of the pages: outboxes with one URL share their connections. A database that cannot be
// opened is left out.
func (g *pages) databases(d database, list []namedOutbox) (open []ui.Database, closeAll func()) {
	pools := map[string]*pgxpool.Pool{}
	add := func(d database, one ui.Database, url string) {
		_, err := pgschema.Prefix(d.Schema)
		if one.Pool = pools[url]; one.Pool == nil && err == nil {
			if one.Pool, err = g.pool(d); err == nil {
				pools[url] = one.Pool
			}
		}
		if err != nil {
			g.log.Error("the pages leave a database out", "database", one.Name, "error", err)
			return
		}
		if one.Name == "" {
			one.Name = one.Pool.Config().ConnConfig.Database
		}
		one.Schema, one.Flags, one.Name = d.Schema, d.where(), pageName(open, one.Name)
		open = append(open, one)
	}
	if !d.several {
		add(d, ui.Database{}, "")
	}
	for _, o := range list {
		if o.wrong != nil {
			g.log.Error("the pages leave an outbox out", "error", o.wrong)
			continue
		}
		add(d.of(o), ui.Database{Name: o.name}, o.urlText)
	}
	return open, func() {
		for _, pool := range pools {
			pool.Close()
		}
	}
}

// pool returns a small pool: a page needs few connections, and viewers share them.
func (g *pages) pool(d database) (*pgxpool.Pool, error) {
	cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	if g.sleeps { // some databases stay awake while a client is connected
		cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = min(cfg.MaxConnIdleTime, idleConns),
			min(cfg.HealthCheckPeriod, idleConns)
	}
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

var unlikeName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// pageName returns a name that is valid in a URL, and that no other database has.
func pageName(others []ui.Database, name string) string {
	name = unlikeName.ReplaceAllString(name, "-")
	if name = name[:min(len(name), 80)]; name == "" || !regexp.MustCompile(`^[a-zA-Z0-9]`).MatchString(name) {
		name = "db" + name
	}
	taken := func(name string) bool {
		return slices.ContainsFunc(others, func(d ui.Database) bool { return d.Name == name })
	}
	for n, base := 2, name; taken(name); n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}

// door returns the access control. An address that other machines reach requires users or a proxy. prefix is that of
// the flags.
func (c pageFlags) door(p *program, prefix string) (func(*http.Request) (ui.Identity, error), error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, service.Usage("--%slisten: want host:port: %w", prefix, err)
	}
	d := &door{header: c.ProxyHeader}
	if d.level, err = ui.ParseLevel(c.ProxyLevel); err != nil {
		return nil, service.Usage("--%sproxy-level: %w", prefix, err)
	}
	for _, text := range c.ProxyFrom {
		from, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, service.Usage("--%sproxy-from: want networks such as 10.0.0.0/8: %w", prefix, err)
		}
		d.from = append(d.from, from)
	}
	if c.Users != "" {
		d.users = &usersFile{path: c.Users}
		if _, err := d.users.read(); err != nil {
			return nil, service.Usage("--%susers: %w", prefix, err)
		}
	}
	if d.users != nil || d.header != "" {
		if d.users != nil && !loopback.Is(host) {
			p.log.Warn("passwords go over the network as they are: put a proxy with TLS before this")
		}
		return d.authorize, nil
	}
	if !loopback.Is(host) {
		return nil, service.Usage("--%[1]slisten=%[2]s is open to others: --%[1]susers or --%[1]sproxy-header must "+
			"say who they are, or listen at 127.0.0.1", prefix, c.Listen)
	}
	name, err := operatorName(p, "")
	if err != nil {
		return nil, service.Usage("this process has no user name, which the audit wants: set USER, or --%susers",
			prefix)
	}
	return ui.Localhost(name), nil
}
