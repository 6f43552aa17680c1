package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/usage"
	"github.com/effectonce/effectonce/process"
)

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The tests of Env are not parallel: the environment is the process's.

func TestEnv(t *testing.T) {
	for name, text := range map[string]string{
		"TEXT": "a", "YES": "true", "MANY": "7", "LONG": "90s", "LIST": "a,b", "PAIRS": "a=1,b=2", "EMPTY": "",
		"PASSWORD_FILE": file(t, "from a file\n"), "SERVICE_HOST": "10.0.0.1", "PORT_80_TCP": "tcp://10.0.0.1:80",
	} {
		t.Setenv("T_"+name, text)
	}
	env := process.NewEnv("T_")
	text, yes, many, long, list, pairs, kept := "", false, 0, time.Duration(0), []string{}, map[string]string{}, "kept"
	for name, to := range map[string]any{
		"TEXT": &text, "YES": &yes, "MANY": &many, "LONG": &long, "LIST": &list, "PAIRS": &pairs, "EMPTY": &kept,
	} {
		env.Set(name, to)
	}
	if text != "a" || !yes || many != 7 || long != 90*time.Second || !slices.Equal(list, []string{"a", "b"}) ||
		!reflect.DeepEqual(pairs, map[string]string{"a": "1", "b": "2"}) || kept != "kept" {
		t.Error(text, yes, many, long, list, pairs, kept)
	}
	if got := env.Secret("PASSWORD"); got != "from a file" {
		t.Errorf("a secret of a file: %q", got)
	}
	if err := env.Err(); err != nil {
		t.Error(err)
	}
}

// TestEnvErrors: an error names the variable and says what is wanted, and repeats no secret.
func TestEnvErrors(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		ask  func(*process.Env)
		want string
	}{
		"no bool": {
			map[string]string{"YES": "ja"},
			func(e *process.Env) { e.Set("YES", new(bool)) }, `T_YES: "ja" is not true or false`,
		},
		"no number": {map[string]string{"MANY": "x"}, func(e *process.Env) { e.Set("MANY", new(int)) }, "T_MANY"},
		"no duration": {
			map[string]string{"LONG": "5"},
			func(e *process.Env) { e.Set("LONG", new(time.Duration)) }, "1m30s",
		},
		"no pairs": {
			map[string]string{"PAIRS": "a"},
			func(e *process.Env) { e.Set("PAIRS", &map[string]string{}) }, "T_PAIRS",
		},
		"misspelt": {
			map[string]string{"LISTN": "x"},
			func(e *process.Env) { e.Set("LISTEN", new(string)) },
			"T_LISTN is no setting's variable: want one of T_LISTEN",
		},
		"no such file": {
			map[string]string{"P_FILE": "/nowhere"},
			func(e *process.Env) { e.Secret("P") }, "T_P_FILE: open /nowhere",
		},
		"twice": {
			map[string]string{"P": "canary", "P_FILE": "/x"},
			func(e *process.Env) { e.Secret("P") }, "T_P and T_P_FILE",
		},
		"no database": {nil, func(e *process.Env) { e.Pool() }, "T_DATABASE_URL is missing"},
		"in the clear": {
			map[string]string{"DATABASE_URL": "postgres://u:canary@db/d?sslmode=disable"},
			func(e *process.Env) { e.Pool() }, "or T_DATABASE_PLAINTEXT where",
		},
		"no URL": {
			map[string]string{"DATABASE_URL": "postgres://u:cana/ry@db/d"},
			func(e *process.Env) { e.Pool() }, "T_DATABASE_URL",
		},
		"no brokers": {nil, func(e *process.Env) { e.Kafka() }, "T_KAFKA_BROKERS is missing"},
		"no TLS": {
			map[string]string{"KAFKA_BROKERS": "h:1", "KAFKA_CA_FILE": "/x"},
			func(e *process.Env) { e.Kafka() }, "T_KAFKA_CA_FILE is set without T_KAFKA_TLS",
		},
		"no user": {
			map[string]string{"KAFKA_BROKERS": "h:1", "KAFKA_SASL": "plain", "KAFKA_PASSWORD": "canary"},
			func(e *process.Env) { e.Kafka() }, "T_KAFKA_USERNAME",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for name, text := range c.env {
				t.Setenv("T_"+name, text)
			}
			env := process.NewEnv("T_")
			c.ask(env)
			err := env.Err()
			var wrong *usage.Error
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &wrong) {
				t.Fatalf("%v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "cana") {
				t.Errorf("the error repeats a secret: %v", err)
			}
		})
	}
}

// TestEnvPool: the password of a file takes the place of the URL's, for the pool and for a connection beside it.
func TestEnvPool(t *testing.T) {
	t.Setenv("T_DATABASE_URL", "postgres://u:one@127.0.0.1:1/d")
	password := file(t, "two")
	t.Setenv("T_DATABASE_PASSWORD_FILE", password)
	env := process.NewEnv("T_")
	pool := env.Pool()
	if err := env.Err(); err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	cfg := pool.Config()
	if got := cfg.ConnConfig.Password; got != "two" {
		t.Errorf("beside the pool: %q", got)
	}
	if err := os.WriteFile(password, []byte("three"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig); err != nil || cfg.ConnConfig.Password != "three" {
		t.Errorf("after a rotation: %q, %v", cfg.ConnConfig.Password, err)
	}
}

// TestEnvKafka: every setting of a way to Kafka has its variable, and a password of a file is followed.
func TestEnvKafka(t *testing.T) {
	password := file(t, "one")
	for name, text := range map[string]string{
		"BROKERS": "a:1,b:2", "SASL": kafkaconn.Plain, "USERNAME": "u", "PASSWORD_FILE": password,
	} {
		t.Setenv("T_KAFKA_"+name, text)
	}
	env := process.NewEnv("T_")
	kafka := env.Kafka()
	if err := env.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(kafka.Brokers, []string{"a:1", "b:2"}) || kafka.Dial == nil {
		t.Errorf("%+v", kafka)
	}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(password, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, first, err := kafka.SASL.Start(t.Context()); err != nil || string(first) != "\x00u\x00"+want {
			t.Errorf("logs in with %q, %v", first, err)
		}
	}
	if err := os.Remove(password); err != nil {
		t.Fatal(err)
	}
	if _, _, err := kafka.SASL.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "T_KAFKA_PASSWORD") {
		t.Errorf("without the file: %v", err)
	}
	t.Setenv("T_WRONG", "x")
	said := env.Err().Error()
	fields, n := reflect.TypeFor[kafkaconn.Config](), 0
	for field := range fields.Fields() {
		n++
		name := "T_" + strings.ToUpper(strings.ReplaceAll(field.Tag.Get("name"), "-", "_"))
		if !strings.Contains(said, name) {
			t.Errorf("%s is not asked for", name)
		}
		if field.Type == reflect.TypeFor[secret.Value]() && !strings.Contains(said, name+"_FILE") {
			t.Errorf("%s_FILE is not asked for", name)
		}
	}
	if n == 0 {
		t.Error("there are no settings")
	}
}
