package migrations

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// DefaultRolePrefix is the default prefix of the roles' names.
const DefaultRolePrefix = "effectonce"

//go:embed roles_outbox.sql
var rolesOutbox string

//go:embed roles_inbox.sql
var rolesInbox string

//go:embed roles_idempotency.sql
var rolesIdempotency string

//go:embed roles_operator.sql
var rolesOperator string

var rolePrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,40}$`)

// PrintRoles writes the SQL of roles with the least privileges: <prefix>_append for producers, _relay for relays,
// _inbox for workers, _inbox_maintainer for creating and dropping the inbox's days, _idempotency for services that
// answer requests, and _operator for the pages and commands of operators. The roles cannot log in; grant them to users.
// The SQL needs the tables of the selected sets, and may run again after each migration: it first revokes what the
// roles have in the schema. An empty prefix is [DefaultRolePrefix]; use another one for a second outbox in the same
// server.
func PrintRoles(to io.Writer, opt Options, prefix string) error {
	p, err := opt.plan(files)
	if err != nil {
		return err
	}
	if prefix == "" {
		prefix = DefaultRolePrefix
	}
	if !rolePrefix.MatchString(prefix) {
		return fmt.Errorf("migrations: role prefix %q: want 1 to 41 of a-z, 0-9 and _, not beginning with a digit",
			prefix)
	}
	w := bufio.NewWriter(to)
	fmt.Fprintln(w, "-- effectonce: roles of least privilege. They cannot log in: grant them to users that can.")
	fmt.Fprintln(w, "-- Run as a superuser, or as the owner of the tables with CREATEROLE; again after each "+
		"migration; all or nothing:")
	fmt.Fprintln(w, "--   psql -X -v ON_ERROR_STOP=1 -1 -f this_file")
	if p.schema != "" {
		fmt.Fprintf(w, "\nset search_path to %s;\n", p.quoted())
	}
	fmt.Fprintf(w, "set lock_timeout = %d;\n", p.lockTimeout.Milliseconds())
	var operates []string
	for _, set := range p.sets() {
		var names []string
		text := ""
		switch set {
		case Outbox:
			names, text = []string{"append", "relay"}, rolesOutbox
		case Inbox:
			names, text = []string{"inbox_maintainer", "inbox"}, rolesInbox
		case Idempotency:
			names, text = []string{"idempotency"}, rolesIdempotency
		default:
			continue
		}
		fmt.Fprint(w, strings.NewReplacer("{role}", prefix, "{names}", "'"+strings.Join(names, "', '")+"'").Replace(
			rolesBegin+text))
		operates = append(operates, "'"+prefix+"_"+names[len(names)-1]+"'")
	}
	fmt.Fprint(w, strings.NewReplacer("{role}", prefix, "{names}", "'operator'", "{operates}",
		strings.Join(operates, ", ")).Replace(rolesBegin+rolesOperator))
	fmt.Fprintln(w, "\nreset lock_timeout;")
	if p.schema != "" {
		fmt.Fprintln(w, "reset search_path;")
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("migrations: print roles: %w", err)
	}
	return nil
}

// rolesBegin precedes the grants of a set: it revokes all others in the schema, such as an older version's.
const rolesBegin = `
do $$ declare name text; begin
	foreach name in array array[{names}] loop
		if not exists (select from pg_roles where rolname = '{role}_' || name) then
			execute format('create role %I nologin', '{role}_' || name);
		end if;
		execute format('revoke all on all tables in schema %I from %I', current_schema(), '{role}_' || name);
		execute format('revoke all on all sequences in schema %I from %I', current_schema(), '{role}_' || name);
		execute format('grant connect on database %I to %I', current_database(), '{role}_' || name);
		execute format('grant usage on schema %I to %I', current_schema(), '{role}_' || name);
	end loop;
end $$;
`
