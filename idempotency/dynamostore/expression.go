package dynamostore

import (
	"regexp"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// same is the condition that a record is as it was found: every write that changes who may do what changes one of
// these.
const same = `#state = :wasState and #token = :wasToken and #fence = :wasFence and #lease = :wasLease`

// mine is the condition that the caller holds the key, and that it is not finished.
const mine = `#token = :token and #fence = :fence and (#state = :working or #state = :unknown)`

var (
	aliases    = regexp.MustCompile(`#[a-zA-Z]+`)
	valueNames = regexp.MustCompile(`:[a-zA-Z]+`)
)

// values are an expression's, by their names with the colon.
type values map[string]types.AttributeValue

func (v values) unchanged(old item) values {
	v[":wasState"], v[":wasToken"], v[":wasFence"], v[":wasLease"] = old["state"], old["token"], old["fence"],
		old["lease"]
	return v
}

// used leaves out what the expressions do not name, for DynamoDB refuses it.
func (v values) used(expressions string) values {
	out := values{}
	for _, name := range valueNames.FindAllString(expressions, -1) {
		out[name] = v[name]
	}
	return out
}

// names maps the aliases of the expressions to the attributes that they are called after: "#state" to "state", which is
// reserved.
func names(expressions string) map[string]string {
	out := map[string]string{}
	for _, alias := range aliases.FindAllString(expressions, -1) {
		out[alias] = alias[1:]
	}
	return out
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func bytes(b []byte) types.AttributeValue {
	if b == nil {
		b = []byte{}
	}
	return &types.AttributeValueMemberB{Value: b}
}
