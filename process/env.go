package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/internal/pgtls"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/usage"
)

// Env reads settings from the environment variables that begin with a prefix. Its methods record errors, which Err
// returns. An empty variable counts as not set. The prefix is the program's own: Err refuses a variable that begins
// with it and that nothing has read, such as a misspelt one, but for those that Kubernetes sets for services.
type Env struct {
	prefix string
	asked  []string
	errs   []error
}

// NewEnv returns an Env for a prefix such as "SHOP_" or "".
func NewEnv(prefix string) *Env { return &Env{prefix: prefix} }

// Err returns the errors of the variables that were read, and names the set variables with the prefix that were not
// read: read all of them first. It contains no secret. [Main] returns CodeUsage for it.
func (e *Env) Err() error {
	errs := slices.Clone(e.errs)
	for _, set := range os.Environ() {
		name, _, _ := strings.Cut(set, "=")
		if e.prefix != "" && strings.HasPrefix(name, e.prefix) && !slices.Contains(e.asked, name) &&
			!ofKubernetes.MatchString(name) {
			errs = append(errs, fmt.Errorf("%s is no setting's variable: want one of %s", name,
				strings.Join(e.asked, ", ")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &usage.Error{Err: err}
	}
	return nil
}

// ofKubernetes matches the variables that Kubernetes sets for each service of the namespace.
var ofKubernetes = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?$`)

func (e *Env) get(name string) (variable, text string) {
	variable = e.prefix + name
	e.asked = append(e.asked, variable)
	return variable, os.Getenv(variable)
}

// Set sets a *string, *bool, *int, *time.Duration ("1m30s"), *[]string (with commas between) or *map[string]string
// (a=b,c=d) from the variable of that name, without the prefix. The value before the call is the default.
func (e *Env) Set(name string, to any) {
	variable, text := e.get(name)
	if text == "" {
		return
	}
	if want := set(to, text); want != "" {
		e.errs = append(e.errs, fmt.Errorf("%s: %q is not %s", variable, text, want))
	}
}

// set parses the text into the value, and returns what it expects if the text is invalid, or else "".
func set(to any, text string) (want string) {
	var err error
	switch to := to.(type) {
	case *string:
		*to = text
	case *bool:
		*to, err = strconv.ParseBool(text)
		want = "true or false"
	case *int:
		*to, err = strconv.Atoi(text)
		want = "a number"
	case *time.Duration:
		*to, err = time.ParseDuration(text)
		want = "a duration such as 1m30s"
	case *[]string:
		*to = strings.Split(text, ",")
	case *map[string]string:
		*to = map[string]string{}
		for pair := range strings.SplitSeq(text, ",") {
			name, value, found := strings.Cut(pair, "=")
			if !found {
				return "NAME=VALUE, with commas between"
			}
			(*to)[name] = value
		}
	default:
		panic(fmt.Sprintf("process: Env.Set takes no %T", to))
	}
	if err == nil {
		return ""
	}
	return want
}

// Secret returns the text of the variable of that name, or else of the file that NAME_FILE names, without the newline
// at its end; "" when neither is set. Call it again to follow a rotation.
func (e *Env) Secret(name string) string {
	text, err := e.secret(name).Reveal()
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s%s_FILE: %w", e.prefix, name, err))
	}
	return text
}

func (e *Env) secret(name string) secret.Value {
	variable, text := e.get(name)
	_, path := e.get(name + "_FILE")
	switch {
	case text != "" && path != "":
		e.errs = append(e.errs, fmt.Errorf("%s and %s_FILE are both set: leave one out", variable, variable))
	case path != "":
		return secret.InFile(path)
	}
	return secret.Of(text)
}

// Pool makes a pool of the database in DATABASE_URL or DATABASE_URL_FILE; it does not connect yet. DATABASE_PASSWORD or
// DATABASE_PASSWORD_FILE replaces the URL's password. User, password and certificates in files are read for each
// connection. An sslmode=disable to another machine is refused without DATABASE_PLAINTEXT=true. Pool returns nil if Err
// returns an error.
func (e *Env) Pool() *pgxpool.Pool {
	settings := pgconf.Database{URL: e.secret("DATABASE_URL"), Password: e.secret("DATABASE_PASSWORD")}
	e.Set("DATABASE_PLAINTEXT", &settings.AllowPlain)
	cfg, err := settings.PoolConfig(e.prefix + "DATABASE_URL")
	if err != nil {
		e.errs = append(e.errs, e.named(err))
		return nil
	}
	if host := pgtls.PlainText(cfg.ConnConfig); host != "" {
		slog.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
			"host", host)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		e.errs = append(e.errs, err)
	}
	return pool
}

// Kafka has the addresses and credentials of a Kafka, for the Config of a publisher or a consumer.
type Kafka struct {
	// Brokers are bootstrap addresses.
	Brokers []string
	// Dial opens a connection, with TLS if that is set. Certificates are read for each connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// SASL logs in; nil: no login. Passwords are read for each connection.
	SASL sasl.Mechanism
}

// Kafka reads the variables KAFKA_BROKERS (required), KAFKA_TLS and those beside it. They are those of `relay
// run --help`, except for tokens of KAFKA_OAUTH_TOKEN_URL and of AWS: set your own SASL for these.
func (e *Env) Kafka() Kafka {
	var cfg kafkaconn.Config
	fields := reflect.ValueOf(&cfg).Elem()
	for i := range fields.NumField() {
		name := variable(fields.Type().Field(i).Tag.Get("name"))
		switch to := fields.Field(i).Addr().Interface().(type) {
		case *secret.Value:
			*to = e.secret(name)
		case *secret.Command:
			_, line := e.get(name)
			_ = to.UnmarshalText([]byte(line)) // takes any
		default:
			e.Set(name, to)
		}
	}
	conn, err := cfg.New(nil)
	if err != nil {
		e.errs = append(e.errs, e.named(err))
		return Kafka{}
	}
	if unwise := conn.Warning(); unwise != "" {
		slog.Warn(e.named(errors.New(unwise)).Error())
	}
	k := Kafka{Brokers: conn.Brokers()}
	k.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := conn.Dial(ctx, network, address)
		return c, e.named(err)
	}
	if m := conn.SASL(); m != nil {
		k.SASL = mechanism{m, e}
	}
	return k
}

// mechanism returns the SASL mechanism. Its errors name the variables.
type mechanism struct {
	sasl.Mechanism
	env *Env
}

// Start begins to log in.
func (m mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	state, first, err := m.Mechanism.Start(ctx)
	return state, first, m.env.named(err)
}

// named replaces the names of flags in an error by the names of the variables.
func (e *Env) named(err error) error {
	if err == nil {
		return nil
	}
	return &named{err, flags.ReplaceAllStringFunc(err.Error(), func(flag string) string {
		return e.prefix + variable(strings.TrimPrefix(flag, "--"))
	})}
}

var flags = regexp.MustCompile(`--(kafka|database)-[a-z-]+`)

func variable(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

type named struct {
	error
	text string
}

func (n *named) Error() string { return n.text }

func (n *named) Unwrap() error { return n.error }
