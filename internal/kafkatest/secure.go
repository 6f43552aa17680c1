package kafkatest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/child"
)

// The user that a Secure knows. Its password is for PLAIN; with SCRAM it has none before SetPassword.
const (
	SecureUser     = "effectonce"
	SecurePassword = "first-password-9b1c"
)

// Secure is a broker of its own that speaks TLS, at two ports beside the plain one of Cluster, which is for the test's own
// tools: SASL wants a user, MTLS wants a client certificate of CA.
type Secure struct {
	*Cluster
	CA         *Authority
	SASL, MTLS string // addresses
}

// secured is what a broker is configured with for it.
type secured struct {
	sasl, mtls       string
	keystore, caFile string
}

// NewSecure starts one that is removed at the end of the test. It skips the test where there is no real Kafka.
func NewSecure(t testing.TB) *Secure {
	t.Helper()
	RequireReal(t)
	libs, err := Libs()
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	s := &Secure{CA: NewAuthority(t)}
	if s.Cluster, err = startCluster(libs, 1, s.prepare); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	t.Cleanup(s.close)
	s.SASL, s.MTLS = s.nodes[0].secure.sasl, s.nodes[0].secure.mtls
	return s
}

// prepare gives a broker its ports and certificate.
func (s *Secure) prepare(n *node) error {
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = child.FreePort(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	n.secure = &secured{
		sasl: fmt.Sprintf("127.0.0.1:%d", ports[0]), mtls: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		keystore: filepath.Join(n.dir, "broker.pem"), caFile: filepath.Join(n.dir, "ca.pem"),
	}
	cert, key, err := s.CA.issue(time.Now().Add(24 * time.Hour))
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.secure.keystore, append(key, cert...), 0o600); err != nil {
		return err
	}
	return os.WriteFile(n.secure.caFile, s.CA.PEM, 0o600)
}

func (s *secured) listeners() string { return "SASL_SSL://" + s.sasl + ",SSL://" + s.mtls }

func (s *secured) properties() []string {
	const security = "org.apache.kafka.common.security."
	return []string{
		"ssl.keystore.type=PEM", "ssl.keystore.location=" + s.keystore,
		"ssl.truststore.type=PEM", "ssl.truststore.location=" + s.caFile,
		"listener.name.ssl.ssl.client.auth=required",
		"sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.sasl_ssl.plain.sasl.jaas.config=" + security + `plain.PlainLoginModule required user_` + SecureUser + `="` + SecurePassword + `";`,
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=" + security + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=" + security + "scram.ScramLoginModule required;",
	}
}

// SetPassword gives SecureUser a password for both SCRAM mechanisms. Connections that are open stay.
func (s *Secure) SetPassword(t testing.TB, password string) {
	t.Helper()
	const rounds = 4096
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails since Go 1.24
	salted256, err1 := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	salted512, err2 := pbkdf2.Key(sha512.New, password, salt, rounds, sha512.Size)
	if err1 != nil || err2 != nil {
		t.Fatalf("kafkatest: %v %v", err1, err2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client := newClient(t, s.Brokers())
	// One request each: a user may stand in one only once.
	for mechanism, salted := range map[int8][]byte{1: salted256, 2: salted512} {
		u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		u.Name, u.Mechanism, u.Iterations, u.Salt, u.SaltedPassword = SecureUser, mechanism, rounds, salt, salted
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = append(req.Upsertions, u)
		resp, err := req.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
		}
		if err != nil {
			t.Fatalf("kafkatest: set a password: %v", err)
		}
	}
}
