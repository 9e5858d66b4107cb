package web

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/nearest"
)

// diagnose returns the fault of a JSON text that cannot be decoded because of err, with the path of
// the field: messages[3].tag.
func diagnose(raw []byte, err error) string {
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	fault, isFault := errors.AsType[*json.SemanticError](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it is truncated; the JSON object has no end"
	case errors.Is(err, jsontext.ErrDuplicateName) && isSyntax:
		return fmt.Sprintf("key %q is repeated%s; give it once", syntax.JSONPointer.LastToken(), within(syntax.JSONPointer.Parent()))
	case isSyntax && invalidUTF8(raw[min(int(syntax.ByteOffset), len(raw)):]):
		return fmt.Sprintf("it is not UTF-8 at byte %d; send binary data in body, in base64", syntax.ByteOffset)
	case isSyntax:
		return fmt.Sprintf("it is not JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
	case errors.Is(err, json.ErrUnknownName) && isFault:
		return unknownKey(fault.JSONPointer, Keys(fault.GoType))
	case isFault:
		return wrongValue(raw, fault)
	}
	return err.Error()
}

// invalidUTF8 reports whether a text begins with a byte that is not UTF-8.
func invalidUTF8(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return r == utf8.RuneError && n == 1
}

// unknownKey returns the error of an unknown key, with a suggestion.
func unknownKey(at jsontext.Pointer, keys []string) string {
	text := fmt.Sprintf("key %q is unknown%s: ", at.LastToken(), within(at.Parent()))
	if n := nearest.Name(at.LastToken(), keys); n != "" {
		text += "did you mean " + n + "? "
	}
	return text + "the keys are " + strings.Join(keys, ", ")
}

// wrongValue returns the error of one value.
func wrongValue(raw []byte, fault *json.SemanticError) string {
	value, t := raw[min(int(fault.ByteOffset), len(raw)):], fault.GoType
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	is := name(fault.JSONPointer) + " is " + kindOfJSON(value)
	wrongType := fault.Err == nil || errors.Is(fault.Err, strconv.ErrSyntax) || errors.Is(fault.Err, strconv.ErrRange)
	switch {
	case t == reflect.TypeFor[time.Time]():
		return is + ", which is not a time; give one in the form of RFC 3339, such as \"2026-01-31T15:04:05Z\""
	case t == reflect.TypeFor[backoff.Steps]() && value[0] != '"':
		return is + "; give one text with all intervals, such as \"10s 30s 1m\""
	case t == reflect.TypeFor[[]byte]() && wrongType:
		return is + "; give a text in base64"
	case t == reflect.TypeFor[[]byte]():
		return name(fault.JSONPointer) + " is not base64 (" + fault.Err.Error() + "); send plain text in body_text"
	case wrongType && t.Kind() == reflect.Slice:
		return is + "; give a list"
	case wrongType && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return is + "; give an object"
	case wrongType:
		return is + ", which has the wrong type; give a " + strings.NewReplacer("int64", "whole number", "int", "whole number", "bool", "boolean").Replace(t.Kind().String())
	}
	return name(fault.JSONPointer) + ": " + fault.Err.Error()
}

// name returns a path in the words of a person: messages[3].tag, or "it" for the whole text.
func name(at jsontext.Pointer) string {
	var path strings.Builder
	for token := range at.Tokens() {
		switch _, err := strconv.Atoi(token); {
		case err == nil:
			path.WriteString("[" + token + "]")
		case path.Len() > 0:
			path.WriteString("." + token)
		default:
			path.WriteString(token)
		}
	}
	if path.Len() == 0 {
		return "it"
	}
	return path.String()
}

func within(at jsontext.Pointer) string {
	if at == "" {
		return ""
	}
	return " in " + name(at)
}

// kindOfJSON returns the kind of the value that a text begins with, and the value if it is short.
func kindOfJSON(text []byte) string {
	kind, ok := map[byte]string{'{': "an object", '[': "a list", '"': "a string", 't': "a boolean", 'f': "a boolean"}[text[0]]
	if !ok {
		kind = "a number"
	}
	value, err := jsontext.NewDecoder(strings.NewReader(string(text[:min(len(text), 41)]))).ReadValue()
	if err != nil || text[0] == '{' || text[0] == '[' || len(value) > 40 {
		return kind
	}
	return kind + " (" + string(value) + ")"
}

// Keys returns the keys of a struct in JSON, in the order of its fields.
func Keys(t reflect.Type) (keys []string) {
	for _, f := range reflect.VisibleFields(t) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
