package kafkatest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Users of a Secure. SecurePassword is for PLAIN; for SCRAM there is no password before SetPassword. SecureUser and
// clients with a certificate may do everything, LimitedUser only what Allow permits.
const (
	SecureUser     = "effectonce"
	LimitedUser    = "limited"
	SecurePassword = "first-password-9b1c"
)

// Secure is a broker with three TLS listeners: SASL requires a user, MTLS a client certificate of CA, Judged a token
// that the Judge accepts. The test itself uses the plaintext listener of Cluster.
type Secure struct {
	*Cluster
	CA                 *Authority
	SASL, MTLS, Judged string // addresses

	issuer *rsa.PrivateKey // signs tokens
	judge  atomic.Pointer[Judge]
	asked  *httptest.Server // introspect
}

// Judge returns when the session ends that a token opens. The zero time refuses the token.
type Judge func(token string) (ends time.Time)

// tlsConfig is the TLS part of a broker's configuration.
type tlsConfig struct {
	sasl, mtls, judged     string
	keystore, caFile, jwks string
	libs, judge            string // of the listener Judged: the handler's jars, the introspection endpoint
}

// NewSecure starts a Secure. The end of the test removes it. Without a real Kafka it skips the test.
func NewSecure(t testing.TB) *Secure {
	t.Helper()
	RequireReal(t)
	libs, err := SecureLibs()
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	s := &Secure{CA: NewAuthority(t)}
	s.asked = httptest.NewServer(http.HandlerFunc(s.introspect))
	t.Cleanup(s.asked.Close)
	if s.issuer, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	if s.Cluster, err = startCluster(libs, 1, s.prepare); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	s.closeAfter(t)
	secure := s.nodes[0].secure
	s.SASL, s.MTLS, s.Judged = secure.sasl, secure.mtls, secure.judged
	return s
}

// JudgeTokens sets the Judge of the listener Judged. Every token that it accepts is SecureUser's. Without a Judge all
// tokens are refused.
func (s *Secure) JudgeTokens(judge Judge) { s.judge.Store(&judge) }

// introspect is the broker's introspection endpoint (RFC 7662).
func (s *Secure) introspect(w http.ResponseWriter, r *http.Request) {
	answer := map[string]any{"active": false}
	if judge := s.judge.Load(); judge != nil {
		if ends := (*judge)(r.FormValue("token")); !ends.IsZero() {
			answer = map[string]any{"active": true, "sub": SecureUser, "exp": ends.Unix()}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// prepare sets a broker's ports and certificate.
func (s *Secure) prepare(n *node) error {
	libs, err := HandlerLibs()
	if err != nil {
		return err
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = child.FreePort(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	n.shared = true // nobody kills it
	n.secure = &tlsConfig{
		sasl: fmt.Sprintf("127.0.0.1:%d", ports[0]), mtls: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		judged: fmt.Sprintf("127.0.0.1:%d", ports[2]), libs: libs, judge: s.asked.URL,
		keystore: filepath.Join(n.dir, "broker.pem"), caFile: filepath.Join(n.dir, "ca.pem"),
		jwks: filepath.Join(n.dir, "jwks.json"),
	}
	if err := os.WriteFile(n.secure.jwks, s.keys(), 0o600); err != nil {
		return err
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

func (s *tlsConfig) listeners() string {
	return "SASL_SSL://" + s.sasl + ",SSL://" + s.mtls + ",JUDGED://" + s.judged
}

func (s *tlsConfig) properties() []string {
	const security = "org.apache.kafka.common.security."
	return []string{
		"super.users=User:ANONYMOUS;User:" + SecureUser + ";User:CN=" + SecureUser,
		"allow.everyone.if.no.acl.found=false",
		"ssl.keystore.type=PEM", "ssl.keystore.location=" + s.keystore,
		"ssl.truststore.type=PEM", "ssl.truststore.location=" + s.caFile,
		// For UseCertificate with another host.
		"ssl.allow.dn.changes=true", "ssl.allow.san.changes=true",
		"listener.name.ssl.ssl.client.auth=required",
		"sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=" + security +
			"oauthbearer.OAuthBearerLoginModule required;",
		"listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class=" + security +
			"oauthbearer.OAuthBearerValidatorCallbackHandler",
		"listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms=60000", // a session ends with its token
		"sasl.oauthbearer.jwks.endpoint.url=" + s.keysURL(),
		"sasl.oauthbearer.expected.audience=" + audience,
		"sasl.oauthbearer.clock.skew.seconds=0",
		// The default validator of Kafka 4.1 did not verify signatures.
		"sasl.oauthbearer.jwt.validator.class=" + security +
			"oauthbearer.BrokerJwtValidator",
		"listener.name.sasl_ssl.plain.sasl.jaas.config=" + security + `plain.PlainLoginModule required user_` +
			SecureUser + `="` + SecurePassword + `" user_` + LimitedUser + `="` + SecurePassword + `";`,
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=" + security + "scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=" + security + "scram.ScramLoginModule required;",
		"listener.name.judged.sasl.enabled.mechanisms=OAUTHBEARER",
		"listener.name.judged.oauthbearer.sasl.server.callback.handler.class=" +
			"io.strimzi.kafka.oauth.server.JaasServerOauthValidatorCallbackHandler",
		"listener.name.judged.oauthbearer.sasl.jaas.config=" + security + "oauthbearer.OAuthBearerLoginModule " +
			`required oauth.introspection.endpoint.uri="` + s.judge + `" oauth.check.issuer="false" ` +
			`oauth.access.token.is.jwt="false" unsecuredLoginStringClaim_sub="broker";`,
		"listener.name.judged.oauthbearer.connections.max.reauth.ms=60000",
	}
}

const audience = "kafka"

func (s *tlsConfig) keysURL() string { return "file://" + s.jwks }

// keys is the issuer's JSON Web Key Set.
func (s *Secure) keys() []byte {
	text := base64.RawURLEncoding.EncodeToString
	return fmt.Appendf(nil,
		`{"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "test", "n": "%s", "e": "%s"}]}`,
		text(s.issuer.N.Bytes()), text(big.NewInt(int64(s.issuer.E)).Bytes()))
}

// Token returns a signed token for SecureUser.
func (s *Secure) Token(t testing.TB, lifetime time.Duration) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	now := time.Now()
	signed := text([]byte(`{"alg": "RS256", "kid": "test"}`)) + "." + text(fmt.Appendf(nil,
		`{"sub": "%s", "aud": "%s", "iat": %d, "exp": %d, "scope": "kafka"}`,
		SecureUser, audience, now.Add(-time.Minute).Unix(), now.Add(lifetime).Unix()))
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.issuer, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatalf("kafkatest: sign a token: %v", err)
	}
	return signed + "." + text(signature)
}

// SetPassword sets SecureUser's password for both SCRAM mechanisms. Open connections stay.
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
	// One request each: a request may name a user only once.
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

// UseCertificate replaces the certificate of both TLS listeners by one that ca signs for hosts (default 127.0.0.1), and
// waits until the broker serves it. Open connections stay.
func (s *Secure) UseCertificate(t testing.TB, ca *Authority, until time.Time, hosts ...string) {
	t.Helper()
	cert, key := ca.IssuePEM(t, until, hosts...)
	// A new file name, or the broker notices no change.
	path := filepath.Join(filepath.Dir(s.nodes[0].secure.keystore), fmt.Sprintf("broker-%d.pem", time.Now().UnixNano()))
	if err := os.WriteFile(path, append(key, cert...), 0o600); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeBroker, strconv.Itoa(s.nodes[0].id)
	for _, listener := range []string{"ssl", "sasl_ssl"} {
		for name, value := range map[string]string{"type": "PEM", "location": path} {
			c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			c.Name, c.Value = "listener.name."+listener+".ssl.keystore."+name, kmsg.StringPtr(value)
			resource.Configs = append(resource.Configs, c)
		}
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = append(req.Resources, resource)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	resp, err := req.RequestWith(ctx, newClient(t, s.Brokers()))
	if err == nil && resp.Resources[0].ErrorMessage != nil {
		err = errors.New(*resp.Resources[0].ErrorMessage)
	}
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err == nil {
		err = s.awaitCertificate(ctx, cert)
	}
	if err != nil {
		t.Fatalf("kafkatest: replace the certificate: %v", err)
	}
}

// awaitCertificate waits until both listeners serve the certificate.
func (s *Secure) awaitCertificate(ctx context.Context, certPEM []byte) error {
	block, _ := pem.Decode(certPEM)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, address := range []string{s.SASL, s.MTLS} {
		for served := false; !served; {
			// Compare the certificate only; whether it is valid does not matter here.
			dialer := tls.Dialer{Config: &tls.Config{
				InsecureSkipVerify: true,
				VerifyConnection: func(state tls.ConnectionState) error {
					served = bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes)
					return nil
				},
			}}
			if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
				_ = conn.Close()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
