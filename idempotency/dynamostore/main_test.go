package dynamostore_test

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/dynamostore"
	"github.com/effectonce/effectonce/idempotency/idempotencytest"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
)

func TestMain(m *testing.M) { child.Main(m, dynamotest.Stop) }

// table makes a table of the test's own and returns its name.
func table(t *testing.T, client *dynamodb.Client) string {
	t.Helper()
	name := "test-" + rand.Text()
	if err := dynamostore.CreateTable(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// open returns a store without clock skew, for a single server.
func open(t *testing.T, client *dynamodb.Client, table string) *dynamostore.Store {
	t.Helper()
	s, err := dynamostore.New(client, table, dynamostore.Config{Skew: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore: every promise of store.Store and store.Recoverer, on DynamoDB Local.
func TestStore(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(t *testing.T) idempotencytest.Harness {
		client := dynamoAt(t, dynamotest.URL(t), nil)
		name := table(t, client)
		s := open(t, client, name)
		return idempotencytest.Harness{
			Store: s, Recoverer: s, Others: []store.Store{open(t, client, name)},
			Features: idempotencytest.Features{ServerTTL: true, OwnClocks: true, MaxBody: 300_000, Histories: 5},
		}
	})
}

func request(key, command string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "t", Operation: "payment.create", Value: key},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(command))},
		Input:       []byte(command),
	}
}

func terms(lease time.Duration) store.ClaimOptions {
	return store.ClaimOptions{Token: rand.Text(), Lease: lease}
}

func claim(t *testing.T, s store.Store, r idempotency.Request, opt store.ClaimOptions) store.ClaimResult {
	t.Helper()
	got, err := s.Claim(t.Context(), r, opt)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func win(t *testing.T, s store.Store, r idempotency.Request) store.Lease {
	t.Helper()
	got := claim(t, s, r, terms(time.Minute))
	if !got.Won {
		t.Fatalf("not won: %+v", got)
	}
	return got.Lease
}

// parse reads a number attribute.
func parse(v types.AttributeValue, n *int64) error {
	number, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		return fmt.Errorf("not a number: %v", v)
	}
	_, err := fmt.Sscan(number.Value, n)
	return err
}
