package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// flagsOf returns the names of a command's flags, and takes their variables out of env.
func flagsOf(t *testing.T, args []string, env environment) []string {
	t.Helper()
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: env.get}
	parsed, err := line.Parse(&c, args, io.Discard, io.Discard)
	if err != nil {
		t.Fatalf("relay %v: %v", args, err)
	}
	var names []string
	for _, flag := range parsed.Flags() {
		names = append(names, flag.Name)
		delete(env, line.Variable(flag.Name))
	}
	return names
}

// TestSettingsOfTheChart: the Helm chart takes every setting of its commands, but secrets and what it sets itself, and
// nothing else.
func TestSettingsOfTheChart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/helm/effectonce/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type settings struct{ PropertyNames struct{ Enum []string } }
	type part struct{ Properties struct{ Settings settings } }
	var schema struct {
		Properties struct {
			Settings           settings
			Relay, UI, Migrate part
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	p := schema.Properties
	var all []string
	for command, c := range map[string]struct {
		part
		own []string
	}{
		"run":     {p.Relay, []string{"listen", "name", "drain-timeout", "ui"}},
		"ui":      {p.UI, []string{"listen", "users"}},
		"migrate": {p.Migrate, []string{"check", "print", "print-pending", "roles", "role-prefix"}},
	} {
		own := append(c.own, "help", "version", "database-url", "database-password", "kafka-password")
		want := slices.DeleteFunc(flagsOf(t, []string{command}, environment{
			"RELAY_DATABASE_URL": "postgres://db/app", "RELAY_KAFKA_BROKERS": "kafka:9092",
		}), func(name string) bool { return slices.Contains(own, name) || strings.HasPrefix(name, "ui-") })
		all = append(all, want...)
		got := c.Properties.Settings.PropertyNames.Enum
		for _, name := range p.Settings.PropertyNames.Enum {
			if command != "migrate" || !strings.HasPrefix(name, "kafka-") {
				got = append(got, name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("values.schema.json has these settings of %s:\n%v, want\n%v", command, got, want)
		}
	}
	for _, name := range p.Settings.PropertyNames.Enum {
		if !slices.Contains(all, name) {
			t.Errorf("no command has the setting %s", name)
		}
	}
}

// TestManifests: the commands of the plain manifests take their arguments, and every variable is a setting.
func TestManifests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kustomize/base/effectonce.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var commands []string
	for {
		var object struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string
							Env  []struct{ Name, Value string }
						}
					}
				}
			}
		}
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, c := range object.Spec.Template.Spec.Containers {
			env := environment{}
			for _, v := range c.Env {
				env[strings.TrimSuffix(v.Name, "_FILE")] = v.Value
			}
			flagsOf(t, c.Args, env)
			if len(env) > 0 {
				t.Errorf("not settings of %v: %v", c.Args, env)
			}
			commands = append(commands, c.Args...)
		}
	}
	slices.Sort(commands)
	if want := []string{"migrate", "run", "ui"}; !slices.Equal(commands, want) {
		t.Errorf("the manifests run %v, want %v", commands, want)
	}
}
