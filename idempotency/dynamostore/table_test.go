package dynamostore_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/effectonce/effectonce/idempotency/dynamostore"
)

// TestTable_AsDocumented: the definition in docs/stores.md is the one that CreateTable makes.
func TestTable_AsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```")
	var documented struct {
		Properties struct {
			dynamodb.CreateTableInput
			PointInTimeRecoverySpecification, TimeToLiveSpecification any
		}
	}
	if err := json.Unmarshal([]byte(text), &documented); err != nil {
		t.Fatal(err)
	}
	got, want := documented.Properties.CreateTableInput, *dynamostore.Table("idempotency")
	got.DeletionProtectionEnabled = nil // tests want to drop theirs
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
}
