// Package ui is a page over outboxes, inboxes and idempotency keys for people: what is wrong, what it means, and the
// verbs that mend it. It calls their operators and the doctor, and nothing else: whatever the page does, the relay
// command does too, and the page shows the command.
//
// A Handler asks Config.Authorize about each request, without exception, and keeps nothing but an hour of figures in
// memory. It needs no script; with one it renews itself.
package ui

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

// Database is one of the databases that a page shows: with an outbox, an inbox, idempotency keys, or several of them.
type Database struct {
	// Name is what people call it, and stands in URLs: letters, digits, "-", "_" and "."; unique.
	Name string
	// Pool connects to it. What its role may do, the page can do: with one that only reads, the page only shows.
	Pool *pgxpool.Pool
	// Schema is that of the tables. Empty: the connection's search_path.
	Schema string
	// Flags name the database on the relay command's line, for the commands that the page shows, such as
	// "--outbox=orders". --schema is added by itself.
	Flags []string
}

// Level is what somebody may do. Each includes those before it.
type Level int

const (
	// View sees all but headers and payloads.
	View Level = iota + 1
	// Reveal sees headers and payloads as well, each time with a reason, and a row in the audit.
	Reveal
	// Operate changes something.
	Operate
)

// levels are their names, as users' files have them.
var levels = []string{"view", "reveal", "operate"}

// String is the name of the level.
func (l Level) String() string {
	if l < View || l > Operate {
		return "none"
	}
	return levels[l-1]
}

// ParseLevel reads a level's name: "view", "reveal" or "operate".
func ParseLevel(name string) (Level, error) {
	if i := slices.Index(levels, name); i >= 0 {
		return Level(i) + View, nil
	}
	return 0, fmt.Errorf("ui: level %q: want view, reveal or operate", name)
}

// Identity is who makes a request.
type Identity struct {
	// Name goes into the audit. Required.
	Name string
	// Level is what the person may do. The zero Level is nothing.
	Level Level
	// Scope is what of the databases the person sees and acts on. Nil: everything. With one there are no pages that
	// tell of others, such as the overview.
	Scope *Scope
}

// Challenge is an error of Config.Authorize that has the browser ask for a password: the answer is 401, with it as
// WWW-Authenticate, such as `Basic realm="effectonce"`.
type Challenge string

func (Challenge) Error() string { return "say who you are" }

// Config is all else. The zero value is refused: somebody must say who may come in.
type Config struct {
	// Authorize says who makes a request. It is asked about each one, stylesheets included. Its error is shown to
	// whoever asks, with 403, or 401 when it is a Challenge. Required.
	Authorize func(*http.Request) (Identity, error)
	// Prefix is the path that the Handler stands under in a mux, such as "/ops/effectonce". Default: it stands at the
	// root.
	Prefix string
	// Kafka is asked about topics and the ends of their partitions. Nil: it is not looked at.
	Kafka *kafka.Client
	// Docs is where the pages of docs/ are, for links to runbooks. Default: those of the project.
	Docs string
	// TraceURL leads from an event to the trace that it was appended in: an address with {trace_id} in it, such as
	// "https://traces.example/trace/{trace_id}". Default: there is no link.
	TraceURL string
	// Refresh is how old figures may be before somebody who looks has them read again. All viewers share one read.
	// Default: 5 s.
	Refresh time.Duration
	// Timeout bounds each read of a database, and a change. Default: 5 s.
	Timeout time.Duration
}

// prefixes are paths that stand for themselves in a pattern of [http.ServeMux], and in URLs.
var prefixes = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`)

func (c Config) withDefaults() (Config, error) {
	if c.Authorize == nil {
		return c, errors.New("ui: Config.Authorize is missing: it says who may come in, and nobody may without it")
	}
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if !prefixes.MatchString(c.Prefix) || path.Clean("/"+c.Prefix) != "/"+strings.TrimPrefix(c.Prefix, "/") {
		return c, fmt.Errorf("ui: Config.Prefix is %q: want a path such as /ops/effectonce, of letters, digits, dots, "+
			"dashes and underscores", c.Prefix)
	}
	if c.Docs == "" {
		c.Docs = "https://github.com/effectonce/effectonce/blob/main/docs"
	}
	c.Docs = strings.TrimSuffix(c.Docs, "/")
	if err := checkTraceURL(c.TraceURL); err != nil {
		return c, err
	}
	if c.Refresh <= 0 {
		c.Refresh = 5 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	return c, nil
}

// Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	most      limits
	cfg       Config
	databases []*database
	mux       *http.ServeMux
	cross     *http.CrossOriginProtection
	pages     map[string]*template.Template
	replays   replays
}

var databaseName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}$`)

// New makes a Handler. It connects to nothing.
func New(databases []Database, cfg Config) (*Handler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(databases) == 0 {
		return nil, errors.New("ui: no database is given")
	}
	h := &Handler{cfg: cfg, cross: http.NewCrossOriginProtection(), most: limits{
		looks: make(chan struct{}, mostLooks), examinations: make(chan struct{}, mostExaminations),
	}}
	names := map[string]bool{}
	for _, d := range databases {
		switch {
		case !databaseName.MatchString(d.Name):
			return nil, fmt.Errorf("ui: database name %q: want letters, digits, \"-\", \"_\" and \".\"", d.Name)
		case names[d.Name]:
			return nil, fmt.Errorf("ui: two databases are named %q", d.Name)
		case d.Pool == nil:
			return nil, fmt.Errorf("ui: database %q has no pool", d.Name)
		}
		names[d.Name] = true
		one, err := newDatabase(d, cfg, h.most)
		if err != nil {
			return nil, err
		}
		h.databases = append(h.databases, one)
	}
	if h.pages, err = parsePages(h); err != nil {
		return nil, err
	}
	h.mux = h.routes()
	return h, nil
}

// sampleEvery is how often Run takes a point of the plots.
const sampleEvery = 10 * time.Second

// Run takes samples for the plots until ctx ends, also while nobody looks, and then stops the replays that the pages
// have begun. Without it the plots have what was seen while somebody did. It returns nil.
func (h *Handler) Run(ctx context.Context) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	defer h.replays.end()
	for {
		for _, d := range h.databases {
			d.state.get(ctx, 0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// named is the database of a name, nil when there is none.
func (h *Handler) named(name string) *database {
	for _, d := range h.databases {
		if d.Name == name {
			return d
		}
	}
	return nil
}
