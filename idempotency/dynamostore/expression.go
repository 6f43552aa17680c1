package dynamostore

import (
	"regexp"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// unchanged is the condition that a record is as it was read: every transition changes one of these attributes.
const unchanged = `#state = :oldState and #token = :oldToken and #fence = :oldFence and #lease = :oldLease`

// held is the condition that the caller holds the key, and that it is not finished.
const held = `#token = :token and #fence = :fence and (#state = :inProgress or #state = :unknown)`

var (
	aliases    = regexp.MustCompile(`#[a-zA-Z]+`)
	valueNames = regexp.MustCompile(`:[a-zA-Z]+`)
)

// values has the values of an expression by their names with the colon.
type values map[string]types.AttributeValue

// old adds the values for the condition unchanged.
func (v values) old(old item) values {
	v[":oldState"], v[":oldToken"], v[":oldFence"], v[":oldLease"] = old["state"], old["token"], old["fence"],
		old["lease"]
	return v
}

// used returns the values that the expressions name: DynamoDB refuses others.
func (v values) used(expressions string) values {
	out := values{}
	for _, name := range valueNames.FindAllString(expressions, -1) {
		out[name] = v[name]
	}
	return out
}

// names maps the aliases in the expressions to attributes: "#state" to "state", which is a reserved word.
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
