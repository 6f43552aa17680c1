package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestJSONEverywhere: each command that reports something does so in JSON, too.
func TestJSONEverywhere(t *testing.T) {
	t.Parallel()
	without := map[string]string{
		"run": "it serves", "ui": "it serves", "dev": "it names a program", "help": "it is for people",
		"man":        "it prints a page",
		"completion": "it prints a script", "complete": "for the scripts", "migrate": "it prints SQL, or logs",
	}
	for _, node := range model(t).Leaves(false) {
		if slices.ContainsFunc(node.Flags, func(f *kong.Flag) bool { return f.Name == "json" }) {
			continue
		}
		if without[node.Path()] == "" {
			t.Errorf("%s has no --json, and there is no reason why", node.FullPath())
		}
		delete(without, node.Path())
	}
	for command := range without {
		t.Errorf("%s has --json, or does not exist", command)
	}
}

func TestChangesInJSON(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	db.Exec(t, "insert into outbox_topic (topic, partitions) values ('a', 6)")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"version", []string{"platform", "version"}},
		{"topics pause --topic a --reason r", []string{"known", "topic"}},
		{"topics resume --topic a --reason r", []string{"topic"}},
		{"topics accept --topic a --partitions 12 --reason r", []string{"partitions", "topic"}},
		{"topics accept-cluster --cluster c --reason r", []string{"cluster"}},
		{"archive maintain --archive-days 2", []string{"cleaned", "dropped", "left", "made"}},
		{"inbox maintain", []string{"cleaned", "dropped", "made"}},
	} {
		env := settings(db, deadBroker)
		if strings.HasPrefix(c.args, "topics accept") {
			env = settings(db) // where brokers are set, it asks them
		}
		code, out, stderr := command(t, env, append(strings.Fields(c.args), "--json")...)
		var got map[string]any
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != codeOK ||
			!slices.Equal(slices.Sorted(maps.Keys(got)), c.want) {
			t.Errorf("%s: exit code %d, %v, want %v in %s%s", c.args, code, err, c.want, out, stderr)
		}
		for name, value := range got {
			if value == nil {
				t.Errorf("%s: %s is null", c.args, name)
			}
		}
	}
}
