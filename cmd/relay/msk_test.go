package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-msk-iam-sasl-signer-go/signer"
	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	canaries "github.com/effectonce/effectonce/internal/testenv/canary"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/oauthbearer"
)

const region = "eu-central-1"

// fakeIAM replaces AWS: it issues credentials as STS and a container's endpoint do, and checks tokens as MSK does, by
// signing their content again.
type fakeIAM struct {
	*httptest.Server
	identity string // a file, as in the pod

	mu      sync.Mutex
	keys    map[string]aws.Credentials // by id
	next    string                     // is issued next
	refused map[string]bool
	session time.Duration
	logins  map[string]int
	tokens  []string // that were checked
}

func newIAM(t *testing.T) *fakeIAM {
	t.Helper()
	i := &fakeIAM{
		keys: map[string]aws.Credentials{}, refused: map[string]bool{}, session: time.Hour, logins: map[string]int{},
		identity: filepath.Join(t.TempDir(), "identity"),
	}
	if err := os.WriteFile(i.identity, []byte("secret-of-pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

// issue makes credentials with a lifetime, which the next requests get.
func (i *fakeIAM) issue(id string, lasts time.Duration) aws.Credentials {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys[id] = aws.Credentials{
		AccessKeyID: id, SecretAccessKey: "secret-of-" + id, SessionToken: "session-of-" + id, CanExpire: true,
		Expires: time.Now().Add(lasts).Truncate(time.Second),
	}
	i.next = id
	return i.keys[id]
}

// secrets returns the values that no output may have.
func (i *fakeIAM) secrets() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := append([]string{"secret-of-pod"}, i.tokens...)
	for _, c := range i.keys {
		all = append(all, c.SecretAccessKey, c.SessionToken)
	}
	return all
}

// ServeHTTP issues credentials: to POST as STS does, to GET as a container's endpoint does.
func (i *fakeIAM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c, until := i.keys[i.next], i.keys[i.next].Expires.UTC().Format(time.RFC3339)
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{
			"AccessKeyId": c.AccessKeyID, "SecretAccessKey": c.SecretAccessKey, "Token": c.SessionToken,
			"Expiration": until,
		})
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("WebIdentityToken") != "secret-of-pod" {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
		return
	}
	fmt.Fprintf(w, "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"+
		"<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken>"+
		"<Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"+
		"</AssumeRoleWithWebIdentityResponse>", c.AccessKeyID, c.SecretAccessKey, c.SessionToken, until)
}

// judge implements kafkatest.Judge.
func (i *fakeIAM) judge(token string) time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tokens = append(i.tokens, token)
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return time.Time{}
	}
	at, err := url.Parse(string(text))
	if err != nil {
		return time.Time{}
	}
	asked := at.Query()
	asked.Del("User-Agent") // not part of the signed request
	at.RawQuery = asked.Encode()
	signed, err := time.Parse("20060102T150405Z", asked.Get("X-Amz-Date"))
	id, _, _ := strings.Cut(asked.Get("X-Amz-Credential"), "/")
	credentials, known := i.keys[id]
	if now := time.Now(); err != nil || !known || i.refused[id] || now.After(credentials.Expires) ||
		now.After(signed.Add(15*time.Minute)) || signed.After(now.Add(time.Minute)) {
		return time.Time{}
	}
	if want, err := presigned(credentials, signed); err != nil || want != at.String() {
		return time.Time{}
	}
	i.logins[id]++
	return time.Now().Add(i.session)
}

// presigned returns the URL that is a token for MSK.
func presigned(credentials aws.Credentials, at time.Time) (string, error) {
	r, err := http.NewRequest(http.MethodGet,
		"https://kafka."+region+".amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Expires=900", nil)
	if err != nil {
		return "", err
	}
	none := sha256.Sum256(nil)
	text, _, err := v4.NewSigner().PresignHTTP(context.Background(), credentials, r, hex.EncodeToString(none[:]),
		"kafka-cluster", region, at)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	u.RawQuery = u.Query().Encode()
	return u.String(), nil
}

// environment is that of a pod with a role, without a developer's own AWS settings.
func (i *fakeIAM) environment() environment {
	env := environment{}
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	} {
		env[name] = ""
	}
	return env.with("AWS_CONFIG_FILE", os.DevNull, "AWS_SHARED_CREDENTIALS_FILE", os.DevNull,
		"AWS_EC2_METADATA_DISABLED", "true", "AWS_REGION", region, "AWS_ENDPOINT_URL_STS", i.URL,
		"AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/relay", "AWS_WEB_IDENTITY_TOKEN_FILE", i.identity)
}

func TestMSKTokens(t *testing.T) {
	service := newIAM(t)
	setenv := func(env environment) {
		for name, value := range env {
			t.Setenv(name, value)
		}
	}
	tokens := func() kafkaconn.Token {
		t.Helper()
		token, err := kafkaTokens(kafkaconn.Config{SASL: kafkaconn.AWSMSKIAM})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	// whose returns the access key that signed a token.
	whose := func(token kafkaconn.Token) string {
		t.Helper()
		text, err := token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clear(service.logins)
		if service.judge(text).IsZero() {
			t.Fatal("the token is refused")
		}
		for id := range service.logins {
			return id
		}
		return ""
	}
	pod := service.environment()
	setenv(pod)
	service.issue("LASTS", time.Hour)
	lasts := tokens()
	if id := whose(lasts); id != "LASTS" {
		t.Errorf("token signed by %s", id)
	}
	service.issue("ENDS-SOON", credentialsWindow-time.Second)
	soon := tokens()
	if id := whose(soon); id != "ENDS-SOON" {
		t.Errorf("token signed by %s", id)
	}
	service.issue("NEXT", time.Hour)
	if id := whose(soon); id != "NEXT" {
		t.Errorf("minutes before the end of its credentials a token was signed by %s", id)
	}
	if id := whose(lasts); id != "LASTS" {
		t.Errorf("valid credentials were replaced by %s", id)
	}

	setenv(environment{"AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": service.URL})
	if id := whose(tokens()); id != "NEXT" {
		t.Errorf("container credentials: token signed by %s", id)
	}
	own := service.issue("OWN", time.Hour)
	service.issue("NEXT", time.Hour)
	setenv(environment{
		"AWS_ACCESS_KEY_ID": own.AccessKeyID, "AWS_SECRET_ACCESS_KEY": own.SecretAccessKey,
		"AWS_SESSION_TOKEN": own.SessionToken,
	})
	if id := whose(tokens()); id != "OWN" {
		t.Errorf("environment credentials: token signed by %s", id)
	}

	for name, c := range map[string]struct {
		env  environment
		want string
	}{
		"none":        {environment{"AWS_WEB_IDENTITY_TOKEN_FILE": ""}, "give the pod, task or instance a role"},
		"not that":    {environment{"AWS_WEB_IDENTITY_TOKEN_FILE": os.DevNull}, "AssumeRoleWithWebIdentity"},
		"no region":   {environment{"AWS_REGION": ""}, "set AWS_REGION to the cluster's region"},
		"no settings": {environment{"AWS_PROFILE": "missing"}, "AWS's settings: "},
	} {
		setenv(pod)
		setenv(c.env)
		token, err := kafkaTokens(kafkaconn.Config{SASL: kafkaconn.AWSMSKIAM})
		if err == nil {
			_, err = token(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		} else if leaks := canaries.Leaks(err.Error(), service.secrets()...); leaks != nil {
			t.Errorf("%s: the error has %v: %v", name, leaks, err)
		}
	}
}

// mskLogin is a SASL mechanism for publisher.Config and consumer.Config.
func mskLogin(cfg aws.Config) oauthbearer.Mechanism {
	return oauthbearer.Mechanism{Token: func(ctx context.Context) (string, error) {
		token, _, err := signer.GenerateAuthTokenFromCredentialsProvider(ctx, cfg.Region, cfg.Credentials)
		return token, err
	}}
}

// TestMSKPage: the function in the document is the one that is tested here.
func TestMSKPage(t *testing.T) {
	t.Parallel()
	page, err1 := os.ReadFile("../../docs/platforms/kafka.md")
	code, err2 := os.ReadFile("msk_test.go")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	_, snippet, _ := strings.Cut(string(page), "```go\n")
	snippet, _, found := strings.Cut(snippet, "```")
	if !found || !strings.Contains(snippet, "oauthbearer.Mechanism") || !strings.Contains(string(code), snippet) {
		t.Errorf("the document has\n%s", snippet)
	}
}

// doctorOf runs doctor of the built binary.
func doctorOf(t *testing.T, env environment) (code int, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), builtBinary(t), "doctor")
	cmd.Env = env.process()
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

// testMSKIAM: the broker accepts only signed tokens and ends each session soon. Relay and consumer log in again, the
// relay with its next credentials. While these are refused it reports that and parks no event.
func testMSKIAM(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	t.Parallel()
	service := newIAM(t)
	kafka.JudgeTokens(service.judge)
	service.session = 3 * time.Second
	embedder := service.issue("EMBEDDER", time.Hour)
	service.issue("FIRST", credentialsWindow+2*time.Second)
	db, topic := outboxDB(t), kafkatest.TopicAt(t, kafka.Brokers(), 2)
	env := settings(db, kafka.Judged).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile, "RELAY_LOG_LEVEL",
		"debug", "RELAY_KAFKA_SASL", "aws-msk-iam")
	for name, value := range service.environment() {
		env[name] = value
	}
	relay, _ := ownProcess(t, env)
	conn, err := kafkaconn.Config{Brokers: []string{kafka.Judged}, TLS: true, CAFile: caFile}.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var said output
	h := consumeAs(t, conn, mskLogin(aws.Config{
		Region: region,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return embedder, nil
		}),
	}), topic, slog.New(slog.NewTextHandler(&said, nil)))
	fill(t, db, topic, 100)
	awaitDrained(t, db)
	h.await(t, 100)
	logins := func(id string) int {
		service.mu.Lock()
		defer service.mu.Unlock()
		return service.logins[id]
	}
	before := logins("EMBEDDER")
	if before == 0 || logins("FIRST") == 0 {
		t.Errorf("logins: %d, %d", before, logins("FIRST"))
	}
	service.issue("SECOND", time.Hour)
	published := int64(100)
	publish := func(what string, until func() bool) {
		t.Helper()
		pgtest.Await(t, what, func() (bool, error) {
			published++
			db.Exec(t, `insert into outbox_event (topic, type) values ($1, 'T')`, topic)
			return until(), nil
		})
	}
	publish("new logins of both, with the relay's next credentials", func() bool {
		return logins("SECOND") > 0 && logins("EMBEDDER") > before
	})
	awaitDrained(t, db)

	refuse := func(is bool) {
		service.mu.Lock()
		defer service.mu.Unlock()
		service.refused["SECOND"] = is
	}
	refuse(true)
	publish("the refusal in the relay's log", func() bool {
		return strings.Contains(strings.ToLower(relay.output()), "sasl authentication failed")
	})
	said.Write([]byte(relay.output()))
	code, text := doctorOf(t, env)
	if code != codeFindings || !strings.Contains(text, "AWS_REGION, kafka-cluster:Connect of their policy") {
		t.Errorf("doctor: exit code %d: %s", code, text)
	}
	said.Write([]byte(text))
	refuse(false)
	awaitDrained(t, db)
	h.await(t, published)
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_parked) + (select count(*) from outbox_held)`); n != 0 {
		t.Errorf("%d events are parked or held", n)
	}

	for want, without := range map[string]environment{
		"of cluster ":                            {},
		"give the pod, task or instance a role":  {"AWS_WEB_IDENTITY_TOKEN_FILE": ""},
		"set AWS_REGION to the cluster's region": {"AWS_REGION": ""},
	} {
		pairs := []string{}
		for name, value := range without {
			pairs = append(pairs, name, value)
		}
		_, text := doctorOf(t, env.with(pairs...))
		if !strings.Contains(text, want) {
			t.Errorf("doctor without %v: %s", without, text)
		}
		said.Write([]byte(text))
	}
	if leaks := canaries.Leaks(relay.output()+said.String(), service.secrets()...); leaks != nil {
		t.Errorf("in the output: %v", leaks)
	}
}
