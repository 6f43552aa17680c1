package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/ui/verbs"
)

// The exit codes, as docs/operations/running.md documents them. They are an interface: supervisors and scripts decide
// by them.
const (
	codeOK        = process.CodeOK
	codeFailed    = process.CodeFailed
	codeUsage     = process.CodeUsage
	codeUndrained = 3
	codeSchema    = 4
	codeForced    = process.CodeForced
	codeFindings  = 6
)

// cli is the command tree.
type cli struct {
	Config    string           `help:"YAML file with settings." placeholder:"FILE"`
	LogFormat string           `help:"text or json, one line each, to stderr." default:"text" enum:"text,json"`
	LogLevel  string           `help:"debug, info, warn or error." default:"info" enum:"debug,info,warn,error"`
	Version   kong.VersionFlag `help:"Print the version."`

	Run     runCommand              `cmd:"" group:"Run and set up:" help:"Publish the outbox to Kafka until a signal ends it."`
	Migrate migrateCommand          `cmd:"" group:"Run and set up:" help:"Create and change the tables, or print the SQL that would."`
	WAL     walCommand              `cmd:"" group:"Run and set up:" name:"wal" help:"Set the WAL feed up and take it down."`
	UI      uiCommand               `cmd:"" group:"Run and set up:" name:"ui" help:"Serve web pages that show problems, with the actions that resolve them."`
	Fence   outboxVerb[verbs.Fence] `cmd:"" group:"Run and set up:" help:"Begin a new numbering, after the database was restored from a backup."`
	Dev     devCommand              `cmd:"" group:"Run and set up:" help:"Print how to run everything on a developer's machine."`

	Status statusCommand             `cmd:"" group:"Look:" help:"Show the backlog, who owns which lanes, and what waits per topic; of several outboxes, a line for each."`
	Lanes  lanesCommand              `cmd:"" group:"Look:" help:"Show every lane: owner, lease, what is under way, held and parked."`
	Doctor doctorCommand             `cmd:"" group:"Look:" help:"Examine database, tables and Kafka: what is wrong, what it means, what to do."`
	Known  acknowledgeCommand        `cmd:"" name:"acknowledge" group:"Look:" help:"Say that a warning of the doctor is known, and stays for some days."`
	Health healthCommand             `cmd:"" group:"Look:" help:"Check the health of a relay on this machine, as a container's health check does."`
	Find   findCommand               `cmd:"" group:"Look:" help:"Find an event or an idempotency key by its id or key."`
	Audit  auditCommand[outboxFlags] `cmd:"" group:"Look:" help:"List what people did with the outbox."`

	Parked    parkedCommand[outboxFlags] `cmd:"" group:"Parked events of the outbox:" help:"List, edit, release and discard events that Kafka refused permanently."`
	Topics    topicsCommand              `cmd:"" group:"Topics:" help:"List topics, accept their partition counts, pause and resume them."`
	Scheduled scheduledCommand           `cmd:"" group:"Scheduled and published events:" help:"List events that are scheduled for later, and cancel them."`
	Replay    replayCommand              `cmd:"" group:"Scheduled and published events:" help:"Publish events again: archived ones, or the rows of a query."`
	Archive   archiveCommand             `cmd:"" group:"Scheduled and published events:" help:"Maintain the archive of published events."`
	Inbox     inboxCommand               `cmd:"" group:"Inbox:" help:"Maintain and operate the inbox."`
	Keys      keysCommand                `cmd:"" group:"Idempotency keys:" help:"List idempotent operations whose outcome is unknown, and resolve those that recovery gave up."`

	Help       helpCommand       `cmd:"" group:"The command itself:" help:"Explain a topic, or a command."`
	Completion completionCommand `cmd:"" group:"The command itself:" help:"Print a script that completes commands, flags and values in bash, zsh, fish or PowerShell."`
	Build      versionCommand    `cmd:"" group:"The command itself:" name:"version" help:"Print the version, the commit and the version of Go."`
	Man        manCommand        `cmd:"" hidden:"" help:"Print the manual's page, for man."`
	Complete   completeCommand   `cmd:"" hidden:"" help:"Print what may stand at the cursor."`
}

// database has the settings of every command that connects to Postgres.
type database struct {
	DatabaseURL      secret.Value   `group:"Postgres:" name:"database-url" shown:"(required)" help:"Postgres, as postgres://user@host:5432/database. What it leaves out comes from PGPASSWORD and the like, or ~/.pgpass."`
	DatabasePassword secret.Value   `group:"Postgres:" name:"database-password" shown:"(of the URL)" help:"Password, in place of the URL's. From a file it is read anew for each connection, as the URL is."`
	PasswordCommand  secret.Command `group:"Postgres:" name:"database-password-command" help:"Shell command that prints the password, or {\"password\": ..., \"expires\": time}, for each connection: a token of RDS, Cloud SQL, Entra or Vault."`
	Plaintext        bool           `group:"Postgres:" name:"database-plaintext" help:"Accept sslmode=disable to another machine: everything can be read and changed on the way."`
	Schema           string         `group:"Postgres:" shown:"(search_path)" help:"Schema of the tables. Name it behind a pooler, which may lose the search_path."`
	manyOutboxes     `group:"Postgres:"`
}

// base returns the embedded database of a command.
func (d *database) base() *database { return d }

// runner is implemented by every command of the tree.
type runner interface {
	base() *database
	run(ctx context.Context, p *program) error
}

// unconnected is implemented by commands without a database.
type unconnected interface {
	run(ctx context.Context, p *program) error
	noDatabase()
}

// program has the dependencies of commands other than their settings.
type program struct {
	log    *slog.Logger
	env    func(string) string
	stdout terminal
	tree   *kong.Node // of commands
	about  func(*kong.Value) string
}

// run is the whole program but for its process: it returns the exit code. The end of ctx stands for a signal.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	var c cli
	line := service.CommandLine{
		Name: "relay", Prefix: "RELAY_", Version: version(), Env: env, Variables: os.Environ(), Footer: footer(),
		List:        outboxList,
		Description: "Publishes the events of an outbox in Postgres to Kafka, in order per key, at least once.",
	}
	parsed, err := line.Parse(&c, args, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "relay:", err)
		return codeUsage
	}
	if parsed == nil {
		return codeOK
	}
	log, err := service.Logger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		fmt.Fprintln(stderr, "relay:", err)
		return codeUsage
	}
	if _, alone := parsed.Selected().Target.Addr().Interface().(unconnected); !alone {
		for _, name := range line.Unknown(parsed.Model.Node) {
			log.Warn("no setting has this variable", "variable", name)
		}
	}
	p := &program{log: log, env: env, stdout: terminalOf(stdout, env), tree: parsed.Model.Node, about: line.Meaning}
	err = c.runSelected(ctx, p, parsed)
	code := exitCode(err)
	switch {
	case err == nil:
	case c.LogFormat == "json": // a collector of JSON lines cannot parse anything else
		log.Error("relay "+parsed.Command()+" failed", "error", err, "exit_code", code)
	default:
		fmt.Fprintln(stderr, "relay:", err)
	}
	return code
}

// forAll is implemented by commands that work on all outboxes if none is named.
type forAll interface{ all() }

// runSelected runs the selected command on the named outbox.
func (c *cli) runSelected(ctx context.Context, p *program, parsed *kong.Context) error {
	target := parsed.Selected().Target.Addr().Interface()
	if alone, ok := target.(unconnected); ok {
		return alone.run(ctx, p)
	}
	selected, ok := target.(runner)
	if !ok {
		return fmt.Errorf("no such command: %s", parsed.Command())
	}
	_, all := selected.(forAll)
	selected.base().file = c.Config
	if err := selected.base().choose(ctx, all); err != nil {
		return err
	}
	return selected.run(ctx, p)
}

// undrainedError is the error of a run that was stopped and did not finish in time.
type undrainedError struct{ err error }

func (e *undrainedError) Error() string { return "the drain did not finish: " + e.err.Error() }
func (e *undrainedError) Unwrap() error { return e.err }

func exitCode(err error) int {
	if err == nil {
		return codeOK
	}
	if _, ok := errors.AsType[*undrainedError](err); ok {
		return codeUndrained
	}
	if errors.Is(err, errFindings) {
		return codeFindings
	}
	if _, ok := errors.AsType[*service.UsageError](err); ok || refusal(err) != "" {
		return codeUsage
	}
	if wrongSchema(err) {
		return codeSchema
	}
	return codeFailed
}

// wrongSchema reports whether the tables are missing or not those that this binary works on.
func wrongSchema(err error) bool {
	for _, kind := range []error{migrations.ErrPending, migrations.ErrNewer, migrations.ErrForeign} {
		if errors.Is(err, kind) {
			return true
		}
	}
	switch pgerr.Code(err) {
	case pgerr.UndefinedTable, "3F000", "42703":
		return true
	}
	return false
}

// refusal returns the remedy if Postgres refuses the connection; "" for every other error.
func refusal(err error) string {
	if what := pgerr.Refused(err); what != "" {
		return what + " (--database-url)"
	}
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return "the role of --database-url lacks a grant: `relay migrate --roles --print` has those that each " +
			"role needs"
	}
	return ""
}

// withAdvice adds the remedy to an error.
func withAdvice(err error) error {
	if err == nil {
		return nil
	}
	if what := refusal(err); what != "" {
		return service.Usage("%s: %w", what, err)
	}
	if what := pgerr.Unreached(err); what != "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return pgsession.Advise(err)
}
