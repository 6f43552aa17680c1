package roles

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/verify/history/tables"
)

// CanaryPassword is the prefix of all passwords. No log, metric or error may contain one.
const CanaryPassword = "canary-password-"

// users are the login role and the granted roles of each role.
var users = []struct{ role, name, rights string }{
	{Producer, "role_producer", "effectonce_append"},
	{Relay, "role_relay", "effectonce_relay"},
	{Worker, "role_worker", "effectonce_inbox"},
	{Operator, "role_operator", "effectonce_operator"},
	{Maintainer, "role_maintainer", "effectonce_inbox_maintainer"},
	{"owner", "role_owner", ""},
}

// User returns the login role of a role; "owner" owns the outbox's archive.
func User(role string) string {
	for _, u := range users {
		if u.role == role {
			return u.name
		}
	}
	return ""
}

// Login returns a database URL for a role. The address may be a proxy's.
func Login(role, address, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(User(role), CanaryPassword+role), Host: address, Path: "/" +
			database,
		RawQuery: "sslmode=disable&application_name=" + role,
	}
	return u.String()
}

// Setup creates the tables and users of the processes in a migrated database, as superuser. PUBLIC keeps no privileges.
func Setup(ctx context.Context, conn *pgx.Conn) error {
	var roles strings.Builder
	if err := migrations.PrintRoles(&roles, migrations.Options{
		Sets: []migrations.Set{migrations.Outbox, migrations.Inbox},
	}, ""); err != nil {
		return err
	}
	script := []string{
		tables.SQLTables,
		"revoke all on schema public from public",
		"revoke all on all tables in schema public from public",
		"revoke all on all functions in schema public from public",
		"do $$ begin execute format('revoke all on database %I from public', current_database()); end $$",
		roles.String(),
	}
	for _, u := range users {
		script = append(script, fmt.Sprintf("create role %s login password '%s'", u.name, CanaryPassword+u.role),
			fmt.Sprintf("do $$ begin execute format('grant connect on database %%I to %s', current_database()); end $$",
				u.name),
			"grant usage on schema public to "+u.name)
		if u.rights != "" {
			script = append(script, fmt.Sprintf("grant %s to %s", u.rights, u.name))
		}
	}
	script = append(script, "grant create on schema public to role_owner", "grant select on effectonce_migration "+
		"to role_owner",
		`do $$ declare t regclass; begin
			for t in select 'outbox_archive'::regclass union all select inhrelid::regclass from pg_inherits where inhparent = 'outbox_archive'::regclass loop
				execute format('alter table %s owner to role_owner', t);
			end loop;
		end $$`,
		strings.NewReplacer("{producer}", User(Producer), "{worker}", User(Worker), "{operator}",
			User(Operator)).Replace(grants))
	for _, sql := range script {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("roles: %.60s: %w", strings.TrimSpace(sql), err)
		}
	}
	return nil
}
