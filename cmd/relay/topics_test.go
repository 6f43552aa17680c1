package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestTopicsCommands(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := environment{"RELAY_DATABASE_URL": db.AdminURL, "RELAY_SCHEMA": db.Schema, "USER": "kim"}
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 6)`)
	for _, c := range []struct {
		args []string
		code int
		want string // in stdout and stderr
	}{
		{[]string{"topics", "pause", "--reason=r"}, codeUsage, "--topic"},
		{[]string{"topics", "pause", "--topic=payments"}, codeUsage, "--reason"},
		{[]string{"topics", "pause", "--topic=payments", "--reason=the ledger is away"}, codeOK, "is paused"},
		{[]string{"topics", "list"}, codeOK, "kim"},
		{[]string{"topics", "list", "--json"}, codeOK, `"reason": "the ledger is away"`},
		{[]string{"topics", "resume", "--topic=payments", "--reason=it is back"}, codeOK, "goes on"},
		{[]string{"topics", "resume", "--topic=payments", "--reason=again"}, codeFailed, "has not paused it"},
		{[]string{"topics", "accept", "--topic=payments", "--reason=resized"}, codeFailed, "at least 1"},
		{[]string{"topics", "accept", "--topic=payments", "--partitions=12", "--reason=resized"}, codeOK, "pinned to 12"},
		{[]string{"topics", "accept-cluster", "--reason=moved"}, codeUsage, "--cluster"},
		{[]string{"topics", "accept-cluster", "--cluster=abc"}, codeUsage, "--reason"},
		{[]string{"topics", "accept-cluster", "--cluster=abc", "--reason=moved"}, codeOK, "pinned to Kafka cluster abc"},
	} {
		code, stdout, stderr := command(t, env, c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%v: exit code %d:\n%s%s", c.args, code, stdout, stderr)
		}
	}
	if _, table, _ := command(t, env, "topics", "list"); !regexp.MustCompile(`(?m)^payments +12 +0 +- `).MatchString(table) {
		t.Errorf("the list is\n%s", table)
	}
}
