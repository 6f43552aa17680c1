// Package ui serves web pages for operators of outboxes, inboxes and idempotency keys: what is wrong, what it means,
// and the actions that repair it. The pages use the operator packages and the doctor only. The relay command can do the
// same, and each page shows its command.
//
// A Handler authorizes every request with Config.Authorize, and keeps an hour of figures in memory. The pages work
// without scripts; with scripts they refresh themselves.
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

// Database is a database with an outbox, an inbox, idempotency keys, or several of these.
type Database struct {
	// Name identifies the database on pages and in URLs: letters, digits, "-", "_" and "."; unique.
	Name string
	// Pool connects to it. The pages can do what its role may do: with a read-only role they have no actions.
	Pool *pgxpool.Pool
	// Schema has the tables. Default: the connection's search_path.
	Schema string
	// Flags name the database in the commands that the pages show, such as "--outbox=orders". The pages add --schema
	// themselves.
	Flags []string
}

// Level is what a person may do. Each level includes the lower ones.
type Level int

const (
	// View shows everything except headers and payloads.
	View Level = iota + 1
	// Reveal also shows headers and payloads, each time for a reason that the audit records.
	Reveal
	// Operate also allows changes.
	Operate
)

// levels are the names in users' files.
var levels = []string{"view", "reveal", "operate"}

// String returns the name of the level.
func (l Level) String() string {
	if l < View || l > Operate {
		return "none"
	}
	return levels[l-1]
}

// ParseLevel parses a level's name: "view", "reveal" or "operate".
func ParseLevel(name string) (Level, error) {
	if i := slices.Index(levels, name); i >= 0 {
		return Level(i) + View, nil
	}
	return 0, fmt.Errorf("ui: level %q: want view, reveal or operate", name)
}

// Identity is the person behind a request.
type Identity struct {
	// Name is recorded in the audit. Required.
	Name string
	// Level is what the person may do. The zero Level allows nothing.
	Level Level
	// Scope limits what the person sees and changes. Nil: no limit. A person with a Scope cannot open pages that show
	// all topics, such as the overview.
	Scope *Scope
}

// Challenge is an error of Config.Authorize that makes the browser ask for a password. It is the WWW-Authenticate of a
// 401, such as `Basic realm="effectonce"`.
type Challenge string

func (Challenge) Error() string { return "say who you are" }

// Config configures a Handler. Authorize is required.
type Config struct {
	// Authorize identifies the person behind each request, also for stylesheets. Its error is shown to the client, with
	// status 403, or 401 if it is a Challenge. Required.
	Authorize func(*http.Request) (Identity, error)
	// Prefix is the Handler's path in a mux, such as "/ops/effectonce". Default: the root.
	Prefix string
	// Kafka is asked about topics and the ends of their partitions. Nil: the pages show nothing of Kafka.
	Kafka *kafka.Client
	// Docs is the address of docs/, for links to runbooks. Default: the project's.
	Docs string
	// TraceURL links an event to the trace of its append: an address with {trace_id} in it, such as
	// "https://traces.example/trace/{trace_id}". Default: no link.
	TraceURL string
	// Refresh is the age at which figures are read again for a viewer. All viewers share one read. Default: 5 s.
	Refresh time.Duration
	// Timeout bounds each read of a database, and a change. Default: 5 s.
	Timeout time.Duration
}

// prefixes are paths that need no escaping in a pattern of [http.ServeMux] and in URLs.
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

// New returns a Handler. It opens no connection.
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

// sampleEvery is the distance of the plots' points.
const sampleEvery = 10 * time.Second

// Run samples the figures of the plots until ctx ends, and then stops the replays that the pages have started. Without
// Run the plots have only figures that viewers requested. It returns nil.
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

// named returns the database with a name; nil: none.
func (h *Handler) named(name string) *database {
	for _, d := range h.databases {
		if d.Name == name {
			return d
		}
	}
	return nil
}
