// Package kafkaconn has the settings of connections to Kafka, TLS and SASL included, for the flags of commands and for
// the clients that they make.
//
// Certificates and passwords in files are read for each connection, so a rotation needs no restart.
package kafkaconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/effectonce/effectonce/internal/kafkaguard"
	"github.com/effectonce/effectonce/internal/loopback"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/oauthbearer"
)

// The values of Config.SASL.
const (
	Plain       = "plain"
	ScramSHA256 = "scram-sha-256"
	ScramSHA512 = "scram-sha-512"
	OAuthBearer = "oauthbearer"
	AWSMSKIAM   = "aws-msk-iam" // OAuthBearer's, with tokens that AWS's credentials sign
)

// Config has the addresses and the credentials. The tags are for command lines: embed it in a command's struct.
type Config struct {
	// Brokers are bootstrap addresses, host:port. Required.
	Brokers []string `name:"kafka-brokers" placeholder:"HOST:PORT" help:"Bootstrap addresses, as host:port with commas between; relay run requires them."`
	// TLS encrypts connections. Default: plaintext.
	TLS bool `name:"kafka-tls" default:"false" help:"Speak TLS to the brokers."`
	// CAFile has the PEM certificates of the authorities of the brokers' certificates. Default: the system's.
	CAFile string `name:"kafka-ca-file" placeholder:"PATH" shown:"(the system's)" help:"PEM file with the CA certificates that the brokers' certificates stand on."`
	// CertFile and KeyFile are the client's certificate (with its chain) and key, both in PEM, for brokers that require
	// one.
	CertFile string `name:"kafka-cert-file" placeholder:"PATH" help:"PEM file with the client's certificate, for brokers that want one. Read anew for each connection."`
	KeyFile  string `name:"kafka-key-file" placeholder:"PATH" help:"PEM file with the key of that certificate."`
	// ServerName is the name in the brokers' certificates. Default: the host of the connection.
	ServerName string `name:"kafka-server-name" shown:"(the broker's host)" help:"Name that the brokers' certificates must be for."`
	// SASL is one of the mechanisms above. Default: no authentication.
	SASL string `name:"kafka-sasl" shown:"(none)" help:"How to log in: plain, scram-sha-256, scram-sha-512, oauthbearer, or aws-msk-iam with AWS's default credentials."`
	// Username and Password are for SASL. OAuthBearer has no user, and its Password is a token; with a TokenURL they
	// are a client's id and secret. A Password in a file is read for each connection; PasswordCommand prints one for
	// each.
	Username        string         `name:"kafka-username" help:"User to log in as; the client id of --kafka-oauth-token-url."`
	Password        secret.Value   `name:"kafka-password" help:"Password of that user, oauthbearer's token, or the client secret of --kafka-oauth-token-url. From a file it is read anew for each connection."`
	PasswordCommand secret.Command `name:"kafka-password-command" help:"Shell command that prints the password or the token, or {\"password\": ..., \"expires\": time}, for each connection."`
	// TokenURL issues tokens of OAuthBearer for a client's id and secret. TokenParams are sent with the request, such
	// as scope and audience.
	TokenURL    string            `name:"kafka-oauth-token-url" placeholder:"URL" help:"Where tokens are got with --kafka-username as client id and --kafka-password as client secret (OIDC client credentials)."`
	TokenParams map[string]string `name:"kafka-oauth-token-params" mapsep:"," placeholder:"NAME=VALUE" help:"What else is sent there, as scope=kafka,audience=orders."`
	// Extensions are sent with a token, such as Confluent Cloud's logicalCluster and identityPoolId.
	Extensions map[string]string `name:"kafka-oauth-extensions" mapsep:"," placeholder:"NAME=VALUE" help:"What goes with the token, as logicalCluster=lkc-1,identityPoolId=pool-1."`
}

// Conn opens connections by a Config.
type Conn struct {
	cfg    Config
	token  Token // nil: the password goes to the broker
	dialer net.Dialer
}

// Token returns a token that is valid now.
type Token = func(ctx context.Context) (string, error)

// Tokens returns the source of tokens for a Config with a TokenURL or AWSMSKIAM; nil: it has none. The caller provides
// it, because it needs libraries that the root module does not require.
type Tokens func(Config) (Token, error)

// New checks a Config and reads its files once. It does not connect. An error names the flag to change, and contains no
// secret. Without tokens, a TokenURL and AWSMSKIAM are errors.
func (c Config) New(tokens Tokens) (*Conn, error) {
	if err := errors.Join(c.checkBrokers(), c.checkTLS(), c.checkSASL()); err != nil {
		return nil, err
	}
	conn := &Conn{cfg: c, dialer: net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}}
	if tokens != nil {
		var err error
		if conn.token, err = tokens(c); err != nil {
			return nil, err
		}
	}
	if conn.token == nil && (c.TokenURL != "" || c.SASL == AWSMSKIAM) {
		return nil, errors.New("--kafka-oauth-token-url or --kafka-sasl=aws-msk-iam: this program gets no such tokens")
	}
	if c.TLS {
		if _, err := c.tlsConfig(""); err != nil {
			return nil, err
		}
	}
	return conn, nil
}

func (c Config) checkBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New("--kafka-brokers is missing: want host:port, with commas between several")
	}
	for _, b := range c.Brokers {
		if !kafkaguard.IsAddress(b) {
			return fmt.Errorf("--kafka-brokers: write broker %q as host:port", b)
		}
	}
	return nil
}

func (c Config) checkTLS() error {
	if !c.TLS {
		for flag, value := range map[string]string{
			"--kafka-ca-file": c.CAFile, "--kafka-cert-file": c.CertFile, "--kafka-key-file": c.KeyFile,
			"--kafka-server-name": c.ServerName,
		} {
			if value != "" {
				return fmt.Errorf("%s is set without --kafka-tls: set that too, or the connection is not encrypted",
					flag)
			}
		}
		return nil
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("--kafka-cert-file and --kafka-key-file belong together: set both or none")
	}
	return nil
}

func (c Config) checkSASL() error {
	own := c.secret().IsSet()
	if c.Password.IsSet() && c.PasswordCommand.IsSet() {
		return errors.New("--kafka-password and --kafka-password-command are both set: leave one out")
	}
	if (len(c.Extensions) > 0 || c.TokenURL != "") && c.SASL != OAuthBearer {
		return errors.New("--kafka-oauth-extensions or --kafka-oauth-token-url is set without --kafka-sasl=oauthbearer")
	}
	if len(c.TokenParams) > 0 && c.TokenURL == "" {
		return errors.New("--kafka-oauth-token-params is set without --kafka-oauth-token-url")
	}
	switch c.SASL {
	case "":
		if c.Username != "" || own {
			return errors.New("--kafka-username or --kafka-password is set without --kafka-sasl: say " + mechanisms)
		}
		return nil
	case Plain, ScramSHA256, ScramSHA512:
		if c.Username == "" || !own {
			return errors.New("--kafka-sasl wants --kafka-username and --kafka-password")
		}
	case OAuthBearer:
		if c.TokenURL != "" {
			return c.checkClient()
		}
		if c.Username != "" || !own {
			return errors.New("--kafka-sasl=oauthbearer wants --kafka-password or --kafka-password-command for its " +
				"token, and no --kafka-username; or --kafka-oauth-token-url")
		}
	case AWSMSKIAM:
		if c.Username != "" || own || !c.TLS {
			return errors.New("--kafka-sasl=aws-msk-iam wants --kafka-tls, and neither --kafka-username nor " +
				"--kafka-password: AWS's credentials sign the token")
		}
		return nil
	default:
		return fmt.Errorf("--kafka-sasl is %q: want %s", c.SASL, mechanisms)
	}
	m, err := c.mechanism()
	if err == nil {
		_, _, err = m.Start(context.Background())
	}
	return err
}

const mechanisms = "plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam"

// checkClient checks the settings of client credentials.
func (c Config) checkClient() error {
	if c.Username == "" || !c.secret().IsSet() {
		return errors.New("--kafka-oauth-token-url wants --kafka-username, a client's id, and --kafka-password, its " +
			"secret")
	}
	at, err := url.Parse(c.TokenURL)
	if err != nil || at.Host == "" || at.User != nil || at.Scheme != "https" && !loopback.Is(at.Hostname()) {
		return errors.New("--kafka-oauth-token-url: want https://host/..., for the client's secret is sent there")
	}
	_, err = c.Secret()
	return err
}

// Secret returns the current password; with a TokenURL, the client's secret.
func (c Config) Secret() (string, error) {
	text, err := c.secret().Reveal()
	if err != nil {
		return "", fmt.Errorf("--kafka-password: %w", err)
	}
	return text, nil
}

// secret returns the password or token.
func (c Config) secret() secret.Value {
	if c.PasswordCommand.IsSet() {
		return c.PasswordCommand.Value
	}
	return c.Password
}

// Brokers returns the bootstrap addresses.
func (c *Conn) Brokers() []string { return c.cfg.Brokers }

// SASL returns the mechanism that logs in; nil: no login.
func (c *Conn) SASL() sasl.Mechanism {
	if c.cfg.SASL == "" {
		return nil
	}
	if c.token != nil {
		return oauthbearer.Mechanism{Token: c.token, Extensions: c.cfg.Extensions}
	}
	return mechanism{c.cfg}
}

// LookAt returns a hint for brokers that do not answer as they should.
func (c *Conn) LookAt() string {
	if c.cfg.SASL == AWSMSKIAM {
		return "--kafka-brokers (port 9098), AWS's credentials, AWS_REGION, kafka-cluster:Connect of their policy, " +
			"the clock, and whether the brokers run"
	}
	return "--kafka-brokers, the TLS and SASL settings, and whether the brokers run"
}

// Warning returns a warning about settings that are valid and unwise, or "".
func (c *Conn) Warning() string {
	if c.cfg.SASL != Plain && c.cfg.SASL != OAuthBearer || c.cfg.TLS {
		return ""
	}
	return "the password or token for Kafka goes over the network as it is: set --kafka-tls, or use a scram mechanism"
}

// Client returns a client for requests beside publishing and consuming, such as those about topics, and a function that
// closes its connections. timeout bounds each request.
func (c *Conn) Client(timeout time.Duration) (client *kafka.Client, closeIdle func()) {
	transport := &kafka.Transport{
		Dial: kafkaguard.Dial(c.Dial, nil), DialTimeout: timeout, SASL: c.SASL(), ClientID: "effectonce",
		MetadataTTL: time.Second,
	}
	return &kafka.Client{Addr: kafka.TCP(c.cfg.Brokers...), Timeout: timeout, Transport: transport},
		transport.CloseIdleConnections
}

// Written reports whether a topic had a record since its creation. Records that retention has removed count.
func Written(ctx context.Context, client *kafka.Client, topic string, partitions int) (bool, error) {
	ask := make([]kafka.OffsetRequest, partitions)
	for i := range ask {
		ask[i] = kafka.LastOffsetOf(i)
	}
	res, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: ask}})
	if err != nil {
		return false, fmt.Errorf("the offsets of topic %s: %w", topic, err)
	}
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return false, fmt.Errorf("the offsets of %s/%d: %w", topic, p.Partition, p.Error)
		}
		if p.LastOffset > 0 {
			return true, nil
		}
	}
	return false, nil
}

// name returns Kafka's name of a mechanism.
func name(mechanism string) string { return strings.ToUpper(mechanism) }
