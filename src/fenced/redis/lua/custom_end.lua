
end)()
if type(result) == 'table' and result['err'] then
  return result
end
return {1, result}
