package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFields(t *testing.T) {
	file := filepath.Join(t.TempDir(), "body.txt")
	if err := os.WriteFile(file, []byte("from\na file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		raw, typed []string
		want       string // the body, or a part of the error
		query      string
	}{
		{[]string{"a=1", "b="}, nil, `{"a":"1","b":""}`, "a=1&b="},
		{[]string{"a=@x", "b=x=y"}, nil, `{"a":"@x","b":"x=y"}`, "a=%40x&b=x%3Dy"},
		{nil, []string{"a=1", "b=true", "c=null", "d=2.50", "e=-3"}, `{"a":1,"b":true,"c":null,"d":2.50,"e":-3}`, "a=1&b=true&c=&d=2.50&e=-3"},
		{nil, []string{"a=12345678901234567890", "b=1 2", "c=nulls", `d="x"`, "e=[1]", "f="}, `{"a":12345678901234567890,"b":"1 2","c":"nulls","d":"\"x\"","e":"[1]","f":""}`, ""},
		{nil, []string{"a=@" + file, "b=@-"}, `{"a":"from\na file","b":"standard input"}`, ""},
		{nil, []string{"a=@" + file + ".not"}, "no such file", ""},
		{[]string{"a[b]=x"}, []string{"a[c]=1", "d[e][f]=2"}, `{"a":{"b":"x","c":1},"d":{"e":{"f":2}}}`, ""},
		{[]string{"a[]=x", "a[]=y"}, []string{"b[c][]=1"}, `{"a":["x","y"],"b":{"c":[1]}}`, ""},
		{[]string{"a[]=x", "a[]=y"}, nil, `{"a":["x","y"]}`, "a=x&a=y"},
		{[]string{"a"}, nil, "the form is KEY=VALUE", ""},
		{[]string{"=x"}, nil, "the form is KEY=VALUE", ""},
		{[]string{"a[b=x"}, nil, "the form is KEY=VALUE", ""},
		{[]string{"a[b]c=x"}, nil, "the form is KEY=VALUE", ""},
		{[]string{"a=x"}, []string{"a=1"}, `--field is "a=1": the key has a value already`, ""},
		{[]string{"a=x", "a[b]=1"}, nil, "the key has a value already", ""},
		{[]string{"a[b]=1", "a[]=1"}, nil, "the members of a list are values", ""},
		{[]string{"a[][b]=1"}, nil, "the members of a list are values", ""},
	} {
		got, err := fields(c.raw, c.typed, strings.NewReader("standard input"))
		text, merr := json.Marshal(got)
		if merr != nil {
			t.Fatal(merr)
		}
		if err != nil {
			text = []byte(err.Error())
		}
		if (err != nil) == strings.HasPrefix(c.want, "{") || err == nil && string(text) != c.want || !strings.Contains(string(text), c.want) {
			t.Errorf("%q and %q are %s, want %s", c.raw, c.typed, text, c.want)
		}
		if c.query != "" {
			if q, err := query(got); err != nil || q.Encode() != c.query {
				t.Errorf("%q and %q are the query %q (%v), want %q", c.raw, c.typed, q.Encode(), err, c.query)
			}
		}
	}
	if _, err := query(map[string]any{"a": map[string]any{"b": 1}}); err == nil {
		t.Error("a query has an object")
	}
}
