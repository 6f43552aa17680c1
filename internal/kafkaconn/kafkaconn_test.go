package kafkaconn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-c0fe"

// good is complete; each case of a test changes it.
func good() kafkaconn.Config {
	return kafkaconn.Config{
		Brokers: []string{"kafka:9092"}, TLS: true, SASL: kafkaconn.ScramSHA256, Username: "u",
		Password: secret.Of(canary),
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := good().New(nil); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*kafkaconn.Config)
		want   string
	}{
		"no brokers": {func(c *kafkaconn.Config) { c.Brokers = nil }, "--kafka-brokers is missing"},
		"broker sans port": {
			func(c *kafkaconn.Config) { c.Brokers = []string{"kafka"} },
			`write broker "kafka" as host:port`,
		},
		"CA sans TLS": {
			func(c *kafkaconn.Config) { c.TLS, c.CAFile = false, "x" },
			"--kafka-ca-file is set without --kafka-tls",
		},
		"name sans TLS": {
			func(c *kafkaconn.Config) { c.TLS, c.ServerName = false, "x" },
			"--kafka-server-name is set without",
		},
		"cert sans key": {func(c *kafkaconn.Config) { c.CertFile = "x" }, "belong together"},
		"no CA file":    {func(c *kafkaconn.Config) { c.CAFile = empty + "x" }, "--kafka-ca-file: open"},
		"empty CA file": {func(c *kafkaconn.Config) { c.CAFile = empty }, "has no certificate in PEM"},
		"empty cert file": {
			func(c *kafkaconn.Config) { c.CertFile, c.KeyFile = empty, empty },
			"--kafka-cert-file and --kafka-key-file: ",
		},
		"mechanism": {func(c *kafkaconn.Config) { c.SASL = "gssapi" }, "want plain, " +
			"scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam"},
		"user sans SASL": {func(c *kafkaconn.Config) { c.SASL = "" }, "without --kafka-sasl"},
		"no user": {
			func(c *kafkaconn.Config) { c.Username = "" },
			"wants --kafka-username and --kafka-password",
		},
		"no password": {
			func(c *kafkaconn.Config) { c.Password = secret.Value{} },
			"wants --kafka-username and --kafka-password",
		},
		"token URL sans oauthbearer": {
			func(c *kafkaconn.Config) { c.TokenURL = "https://id.example/token" },
			"--kafka-oauth-token-url is set without",
		},
		"params sans URL": {
			func(c *kafkaconn.Config) { c.TokenParams = map[string]string{"scope": "x"} },
			"without --kafka-oauth-token-url",
		},
		"a secret in the clear": {
			func(c *kafkaconn.Config) { c.SASL, c.TokenURL = kafkaconn.OAuthBearer, "http://id.example/token" },
			"want https://host/",
		},
		"a secret in the URL": {
			func(c *kafkaconn.Config) {
				c.SASL, c.TokenURL = kafkaconn.OAuthBearer, "https://u:"+canary+"@id.example/token"
			},
			"want https://host/",
		},
		"no client": {
			func(c *kafkaconn.Config) {
				c.SASL, c.TokenURL, c.Username = kafkaconn.OAuthBearer, "https://id.example/token", ""
			},
			"wants --kafka-username, a client's id",
		},
		"nobody makes tokens": {
			func(c *kafkaconn.Config) { c.SASL, c.TokenURL = kafkaconn.OAuthBearer, "https://id.example/token" },
			"this program gets no such tokens",
		},
		"nobody signs": {
			func(c *kafkaconn.Config) {
				c.SASL, c.Username, c.Password = kafkaconn.AWSMSKIAM, "", secret.Value{}
			},
			"this program gets no such tokens",
		},
		"a user of IAM": {
			func(c *kafkaconn.Config) { c.SASL, c.Password = kafkaconn.AWSMSKIAM, secret.Value{} },
			"neither --kafka-username",
		},
		"a password of IAM": {
			func(c *kafkaconn.Config) { c.SASL, c.Username = kafkaconn.AWSMSKIAM, "" },
			"nor --kafka-password",
		},
		"IAM in the clear": {
			func(c *kafkaconn.Config) {
				c.SASL, c.Username, c.Password, c.TLS = kafkaconn.AWSMSKIAM, "", secret.Value{}, false
			},
			"wants --kafka-tls",
		},
		"empty file": {func(c *kafkaconn.Config) { c.Password = secret.InFile(empty) }, "--kafka-password: "},
		"forbidden password": {
			func(c *kafkaconn.Config) { c.Password = secret.Of(canary + "\u0007") },
			"characters that scram-sha-256 does not allow",
		},
	} {
		cfg := good()
		c.change(&cfg)
		_, err := cfg.New(nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		} else if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error repeats the password: %v", name, err)
		}
	}
}

func TestWarning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sasl  string
		tls   bool
		warns bool
	}{{kafkaconn.Plain, true, false}, {kafkaconn.Plain, false, true}, {kafkaconn.ScramSHA512, false, false}} {
		cfg := good()
		cfg.SASL, cfg.TLS = c.sasl, c.tls
		conn, err := cfg.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.Warning(); (got != "") != c.warns {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// server speaks TLS until the end of the test, or plaintext when cfg is nil.
func server(t *testing.T, cfg *tls.Config) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if cfg != nil {
				_ = tls.Server(conn, cfg).HandshakeContext(t.Context())
			} else {
				_, _ = conn.Write([]byte("this is not TLS at all\r\n"))
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func serving(t *testing.T, ca *kafkatest.Authority, until time.Time) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(ca.Issue(t, until))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// TestHandshakes: a certificate that is refused says what to do about it.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	ca, other := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	tomorrow := time.Now().Add(time.Hour)
	wantsClient := serving(t, ca, tomorrow)
	wantsClient.ClientAuth, wantsClient.MaxVersion, wantsClient.ClientCAs = tls.RequireAndVerifyClientCert,
		tls.VersionTLS12, x509.NewCertPool()
	wantsClient.ClientCAs.AppendCertsFromPEM(ca.PEM)
	ownCert, ownKey := ca.Issue(t, tomorrow)
	for name, c := range map[string]struct {
		server *tls.Config
		change func(*kafkaconn.Config)
		want   string
	}{
		"right": {serving(t, ca, tomorrow), func(*kafkaconn.Config) {}, ""},
		"untrusted": {serving(t, other, tomorrow), func(*kafkaconn.Config) {}, "stands on another CA than those " +
			"of --kafka-ca-file"},
		"expired": {serving(t, ca, time.Now().Add(-time.Hour)), func(*kafkaconn.Config) {}, "has run out"},
		"another name": {
			serving(t, ca, tomorrow), func(c *kafkaconn.Config) { c.ServerName = "kafka.example" },
			"is not for kafka.example",
		},
		"no TLS there":  {nil, func(*kafkaconn.Config) {}, "does not speak TLS"},
		"no client":     {wantsClient, func(*kafkaconn.Config) {}, "refuses the client's certificate"},
		"with a client": {wantsClient, func(c *kafkaconn.Config) { c.CertFile, c.KeyFile = ownCert, ownKey }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good()
			cfg.CAFile = ca.File(t)
			c.change(&cfg)
			conn, err := cfg.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			nc, err := conn.Dial(t.Context(), "tcp", server(t, c.server))
			if err == nil {
				_ = nc.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestFilesAreFollowed: certificates and passwords are those of the moment of a connection.
func TestFilesAreFollowed(t *testing.T) {
	t.Parallel()
	first, second := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	at := server(t, serving(t, second, time.Now().Add(time.Hour)))
	cfg := good()
	cfg.CAFile = first.File(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.SASL, cfg.Password = kafkaconn.Plain, secret.InFile(password)
	conn, err := cfg.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Dial(t.Context(), "tcp", at); err == nil {
		t.Fatal("the first authority did not sign that")
	}
	for path, content := range map[string]string{cfg.CAFile: string(second.PEM), password: "new"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := conn.Dial(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.Close()
	if _, first, err := conn.SASL().Start(context.Background()); err != nil || string(first) != "\x00u\x00new" {
		t.Errorf("%q, %v", first, err)
	}
}
