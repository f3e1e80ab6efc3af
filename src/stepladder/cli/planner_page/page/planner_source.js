// Where answers come from: the server that `stepladder plan --page` is.
export async function ask(question, values) {
  const answer = await fetch(`api/${question}?${new URLSearchParams(values)}`);
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
